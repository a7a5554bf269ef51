import com.zaxxer.hikari.HikariDataSource;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

/** HikariCP, over JDBC. */
class HikariPoolSteps {
    static final String SERVER = System.getenv("PGHOST") + ":" + System.getenv("PGPORT");
    static final String URL = "jdbc:postgresql://" + SERVER + "/" + System.getenv("PGDATABASE");
    static final String USER = System.getenv("PGUSER");
    static final String WRITE = "INSERT INTO jobs SELECT count(*) FROM jobs RETURNING id";
    static final String READ = "SELECT quote_literal(current_setting('lease.fence')) || ' ' || pg_backend_pid()";

    static String token = "";

    static String currentToken() {
        return token;
    }

    /** A connection that presents the current token. Close it as usual. */
    static Connection checkOut(HikariDataSource pool) throws SQLException {
        Connection connection = pool.getConnection();
        try (Statement statement = connection.createStatement()) {
            statement.execute("SET lease.fence = '" + currentToken() + "'");
            if (!connection.getAutoCommit()) {
                connection.commit();
            }
            return connection;
        } catch (SQLException error) {
            pool.evictConnection(connection);
            throw error;
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("com.zaxxer.hikari.aliveBypassWindowMs", "0");
        var pool = new HikariDataSource();
        pool.setJdbcUrl(URL);
        pool.setUsername(USER);
        pool.setMaximumPoolSize(1);
        pool.setAutoCommit(false);
        report("first", visit(pool, "1", WRITE, READ));
        report("newer", visit(pool, "2", WRITE, READ));
        report("none", visit(pool, "", READ));
        report("refused", visit(pool, "", WRITE));
        report("rolled_back", visit(pool, "2", WRITE, "ROLLBACK", READ));
        report("cut_off", visitInterrupted(pool));
        report("after", visit(pool, "3", WRITE, READ));
        System.exit(0);
    }

    /** Runs these statements in a transaction. Returns the result of the last one, or the SQLSTATE of its error. */
    static String visit(HikariDataSource pool, String visitor, String... actions) throws SQLException {
        token = visitor;
        try (var connection = checkOut(pool); var statement = connection.createStatement()) {
            String result = null;
            for (String action : actions) {
                if (statement.execute(action)) {
                    statement.getResultSet().next();
                    result = statement.getResultSet().getString(1);
                }
            }
            connection.commit();
            return result;
        } catch (SQLException error) {
            return error.getSQLState();
        }
    }

    /** A newer leader writes during a statement outside a transaction, so there is nothing to roll back. */
    static String visitInterrupted(HikariDataSource pool) throws Exception {
        token = "2";
        var leader = CompletableFuture.runAsync(HikariPoolSteps::takeOverOnceAsleep);
        try (var connection = checkOut(pool); var statement = connection.createStatement()) {
            connection.setAutoCommit(true);
            statement.execute("WITH slow AS (" + WRITE + ") SELECT pg_sleep(600) FROM slow");
            return "an error was expected";
        } catch (SQLException error) {
            return error.getSQLState();
        } finally {
            leader.get();
        }
    }

    static void takeOverOnceAsleep() {
        try (var leader = DriverManager.getConnection(URL, USER, ""); var statement = leader.createStatement()) {
            statement.execute("SELECT until_asleep()");
            statement.execute("SET lease.fence = 3; DELETE FROM jobs");
        } catch (SQLException error) {
            throw new CompletionException(error);
        }
    }

    static void report(String visit, String found) {
        System.out.println(visit + ": " + found);
    }
}
