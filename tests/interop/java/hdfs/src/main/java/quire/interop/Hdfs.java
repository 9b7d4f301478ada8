package quire.interop;

import java.io.File;
import java.util.Locale;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * A real HDFS on loopback, in one process: a name node and one data node, which keep their files in a folder.
 *
 * <p>Prints the ports of the name node, "rpc http", once everything serves. Ends when its input does.
 */
public final class Hdfs {
    private Hdfs() {}

    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.set("dfs.replication", "1");
        settings.set("dfs.permissions.enabled", "false");
        settings.set("dfs.namenode.http-address", "127.0.0.1:0");
        settings.set("dfs.namenode.rpc-bind-host", "127.0.0.1");
        settings.set("dfs.datanode.hostname", "127.0.0.1");
        settings.setBoolean("dfs.namenode.datanode.registration.ip-hostname-check", false);
        File folder = new File(arguments[0]);
        try (MiniDFSCluster cluster =
                new MiniDFSCluster.Builder(settings, folder).numDataNodes(1).nameNodeHttpPort(0).build()) {
            cluster.waitActive();
            int http = cluster.getNameNode().getHttpAddress().getPort();
            System.out.printf(Locale.ROOT, "%d %d%n", cluster.getNameNodePort(), http);
            System.out.flush();
            while (System.in.read() >= 0) {
                // Whoever started us is still there.
            }
        }
    }
}
