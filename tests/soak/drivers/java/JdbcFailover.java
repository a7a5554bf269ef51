import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;

/** pgjdbc with a list of hosts, through a promotion. Threads write before, during and after it, each on its own connection. */
class JdbcFailover {
    static final int THREADS = 8;
    static final int WRITES = 20;

    static final AtomicLong numbers = new AtomicLong();
    static final Queue<String> lines = new ConcurrentLinkedQueue<>();
    static final CountDownLatch writtenBefore = new CountDownLatch(THREADS);
    static volatile boolean isPromoted = false;

    static String url() {
        List<String> hosts = new ArrayList<>();
        for (String port : System.getenv("PORTS").split(",")) {
            hosts.add(System.getenv("PGHOST") + ":" + port);
        }
        return "jdbc:postgresql://" + String.join(",", hosts) + "/" + System.getenv("PGDATABASE") + "?targetServerType=primary";
    }

    static Connection connect() throws SQLException {
        var properties = new Properties();
        properties.setProperty("user", System.getenv("PGUSER"));
        properties.setProperty("options", "-c lease.fence=1");
        return DriverManager.getConnection(url(), properties);
    }

    /** Writes a row. Opens a connection if there is none, and closes it after an error. */
    static class Writer {
        Connection connection;

        boolean write() {
            long number = numbers.incrementAndGet();
            try {
                if (connection == null) {
                    connection = connect();
                }
                try (var statement = connection.prepareStatement("INSERT INTO entries (writer, token, number) VALUES (1, 1, ?)")) {
                    statement.setLong(1, number);
                    statement.executeUpdate();
                }
            } catch (SQLException error) {
                var code = error.getSQLState();
                lines.add("error " + (code.startsWith("LF") ? code + ": " + error.getMessage().lines().findFirst().get() : code));
                close();
                return false;
            }
            lines.add("committed " + number);
            return true;
        }

        void close() {
            try {
                if (connection != null) {
                    connection.close();
                }
            } catch (SQLException error) {
                // The connection was lost.
            }
            connection = null;
        }

        void work() {
            for (int write = 0; write < WRITES; write++) {
                write();
            }
            writtenBefore.countDown();
            while (!isPromoted) {
                write();
            }
            int written = 0;
            while (written < WRITES) {
                written += write() ? 1 : 0;
            }
            close();
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < THREADS; number++) {
            var thread = new Thread(new Writer()::work);
            threads.add(thread);
            thread.start();
        }
        writtenBefore.await();
        System.out.println("ready");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        isPromoted = true;
        for (Thread thread : threads) {
            thread.join();
        }
        lines.forEach(System.out::println);
    }
}
