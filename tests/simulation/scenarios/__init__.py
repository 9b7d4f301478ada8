"""The scenarios of the ledger protocol's specification, one test or more for each, by number.

Real bookies and real clients in a simulation, with every message in the test's hands: see `stage`. Each is played with
several seeds, which decide delays, pieces and the order in which things happen.

     1  two acks of three, in id order            test_writing
     2  an older add is delayed                   test_writing
     3  round robin of writes and reads           test_writing
     4  an ensemble change and what it resends    test_writing
     5  a second failure before any ack           test_writing
     6  complete, and held by another's change    test_writing
     7  the ack of a bookie that was replaced     test_writing
     8  the new bookie fails as well              test_writing
     9  no spare bookie                           test_writing; while an ack quorum is left the writer goes on:
                                                  tests/unit/ledger/writing/test_writer.py::
                                                  test_a_bookie_that_is_not_needed_for_the_quorum_may_be_gone_for_good
    10  fragment 0 is rewritten meanwhile         test_writing
    11  deferred sync, force and close            test_writing, three tests
    12  chosen entry ids                          test_writing
    13  an entry on an ack quorum                 test_recovery
    14  an entry on one bookie, in or out of reach  test_recovery, two tests
    15  two timeouts and one denial               test_recovery
    16  a fence that missed one bookie            test_recovery
    17  an empty last fragment                    test_recovery
    18  a bookie dies during write-back           test_recovery
    19  two recoveries at once                    test_recovery
    20  the writer closes during a recovery       test_recovery, two tests: only a writer that knows the fate of all it
                                                  sent overtakes a recovery
    21  a change races a recovery                 test_recovery
    22  an ack quorum of one and a bookie down    test_recovery
    23  a fence and a kill right after it         test_bookies
    24  a damaged record of an entry log          test_bookies, two tests
    25  a wiped disk, and limbo                   test_bookies, two tests. A bookie of ours never takes a wiped disk for
                                                  its own, so limbo is shown after damage to its journal
    26  a crash between flush and mark            test_bookies, with one journal and with two. A bookie of ours has one
                                                  data folder, and one mark for all its journals
    27  a ledger made during garbage collection   test_bookies; every moment of it: tests/simulation/test_garbage.py
    28  a lost bookie and a live writer           with re-replication, not built yet
    29  a re-replication that crashes             with re-replication, not built yet
    30  the delay before a lost bookie counts     with re-replication, not built yet
    31  tail readers                              test_tailing, four tests
    32  Java's bookies and clients                tests/interop: test_our_client_fencing.py, both ways
"""
