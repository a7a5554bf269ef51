import java.io.StringReader;
import java.io.StringWriter;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.postgresql.PGConnection;
import org.postgresql.util.PSQLException;

/** PostgreSQL's JDBC driver. */
class JdbcSteps {
    static final String LARGE = "0123456789abcdef".repeat(4 * 1024 * 1024 / 16);

    interface Action {
        void run() throws Exception;
    }

    Connection connection;
    PreparedStatement insert;

    public static void main(String[] arguments) throws Exception {
        new JdbcSteps().run();
        System.exit(0);
    }

    void run() throws Exception {
        report("version", org.postgresql.util.DriverInfo.DRIVER_VERSION);
        connection = connect(1);
        report("token", value("SELECT current_setting('lease.fence')"));

        execute("INSERT INTO jobs VALUES (1, 'one')");
        report("writes", value("SELECT payload FROM jobs WHERE id = 1"));

        prepares();
        batches();
        copies();
        scrolls();
        carriesLargeValues();
        listens();
        cancels();

        takeOver(2);
        report("is_refused", shown(() -> execute("INSERT INTO jobs VALUES (3)")));
        refusals();
        aborts();
        execute("SET lease.fence = 2");
        execute("INSERT INTO jobs VALUES (3, 'three')");
        report("goes_on", value("SELECT payload FROM jobs WHERE id = 3"));

        connection.setAutoCommit(false);
        execute("INSERT INTO jobs VALUES (4)");
        takeOver(3);
        report("is_cut_off", shown(() -> value("SELECT 'on'")));

        connection = connect(3);
        connection.setAutoCommit(false);
        execute("INSERT INTO jobs VALUES (4)");
        onceAsleep(() -> takeOver(4));
        report("is_interrupted", shown(() -> value("SELECT pg_sleep(600)")));

        connection = connect(4);
        execute("INSERT INTO jobs VALUES (4, 'four')");
        report("starts_again", value("SELECT payload FROM jobs WHERE id = 4"));
    }

    void prepares() throws Exception {
        insert = connection.prepareStatement("INSERT INTO jobs VALUES (?)");
        insertPrepared(100);
        report("prepares", value("SELECT sum(id) FROM jobs WHERE id BETWEEN 100 AND 109"));
    }

    void batches() throws Exception {
        insertAsABatch(200);
        report("batches", value("SELECT sum(id) FROM jobs WHERE id BETWEEN 200 AND 209"));
    }

    void copies() throws Exception {
        copyIn(1000, 1000);
        var read = new StringWriter();
        String query = "COPY (SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999) TO STDOUT";
        connection.unwrap(PGConnection.class).getCopyAPI().copyOut(query, read);
        report("copies", read.toString().lines().mapToLong(Long::parseLong).sum());
    }

    void scrolls() throws Exception {
        connection.setAutoCommit(false);
        long sum = 0;
        try (var statement = connection.createStatement()) {
            statement.setFetchSize(70);
            ResultSet rows = statement.executeQuery("SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999");
            while (rows.next()) {
                sum += rows.getInt(1);
            }
        }
        connection.commit();
        connection.setAutoCommit(true);
        report("scrolls", sum);
    }

    void carriesLargeValues() throws Exception {
        try (var insert = connection.prepareStatement("INSERT INTO jobs VALUES (2, ?)")) {
            insert.setString(1, LARGE);
            insert.executeUpdate();
        }
        boolean same = LARGE.equals(value("SELECT payload FROM jobs WHERE id = 2"));
        report("carries_large_values", same ? "same" : "another");
    }

    void listens() throws Exception {
        execute("LISTEN ticks");
        inAnotherSession("NOTIFY ticks, 'tick'");
        var notifications = connection.unwrap(PGConnection.class).getNotifications(60_000);
        report("listens", notifications[0].getParameter());
    }

    void cancels() throws Exception {
        try (Statement sleeping = connection.createStatement()) {
            onceAsleep(sleeping::cancel);
            var error = errorOf(() -> sleeping.execute("SELECT pg_sleep(600)"));
            report("cancels", error.getSQLState().equals("57014") ? value("SELECT 'cancelled'") : error);
        }
    }

    void refusals() throws Exception {
        String prepared = errorOf(() -> insertPrepared(300)).getSQLState();
        String batch = errorOf(() -> insertAsABatch(300)).getSQLState();
        String copy = errorOf(() -> copyIn(300, 10)).getSQLState();
        report("refusals", prepared + " " + batch + " " + copy);
    }

    void aborts() throws Exception {
        connection.setAutoCommit(false);
        errorOf(() -> execute("INSERT INTO jobs VALUES (3)"));
        var error = errorOf(() -> value("SELECT 'refused'"));
        connection.rollback();
        connection.setAutoCommit(true);
        report("aborts", error.getSQLState().equals("25P02") ? value("SELECT 'on'") : error);
    }

    /** The driver prepares the statement on the server at its fifth execution. */
    void insertPrepared(int first) throws SQLException {
        for (int number = first; number < first + 10; number++) {
            insert.setInt(1, number);
            insert.executeUpdate();
        }
    }

    void insertAsABatch(int first) throws SQLException {
        for (int number = first; number < first + 10; number++) {
            insert.setInt(1, number);
            insert.addBatch();
        }
        insert.executeBatch();
    }

    void copyIn(int first, int count) throws Exception {
        var numbers = IntStream.range(first, first + count).mapToObj(Integer::toString);
        String lines = numbers.collect(Collectors.joining("\n"));
        connection.unwrap(PGConnection.class).getCopyAPI().copyIn("COPY jobs (id) FROM STDIN", new StringReader(lines));
    }

    void execute(String sql) throws SQLException {
        try (var statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    String value(String sql) throws SQLException {
        try (var statement = connection.createStatement(); var rows = statement.executeQuery(sql)) {
            rows.next();
            return rows.getString(1);
        }
    }

    static Connection connect(int token) throws SQLException {
        var properties = new Properties();
        properties.setProperty("user", System.getenv("PGUSER"));
        properties.setProperty("options", "-c lease.fence=" + token);
        String server = System.getenv("PGHOST") + ":" + System.getenv("PGPORT");
        return DriverManager.getConnection("jdbc:postgresql://" + server + "/" + System.getenv("PGDATABASE"), properties);
    }

    /** Another leader writes with that token. */
    static void takeOver(int token) throws SQLException {
        inAnotherSession("SET lease.fence = " + token + "; DELETE FROM jobs WHERE id <> 4");
    }

    static void inAnotherSession(String sql) throws SQLException {
        try (var another = connect(1); var statement = another.createStatement()) {
            statement.execute(sql);
        }
    }

    static void onceAsleep(Action action) {
        CompletableFuture.runAsync(() -> {
            try {
                inAnotherSession("SELECT until_asleep()");
                action.run();
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
    }

    static SQLException errorOf(Action action) throws Exception {
        try {
            action.run();
        } catch (SQLException error) {
            return error;
        }
        throw new AssertionError("an error was expected");
    }

    static String shown(Action action) throws Exception {
        var error = (PSQLException) errorOf(action);
        var server = error.getServerErrorMessage();
        String fields = error.getSQLState() + " " + server.getSeverity() + " " + server.getDetail();
        return error.getClass().getName() + " " + fields;
    }

    static void report(String step, Object result) {
        System.out.println(step + ": " + result);
    }
}
