package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	client "fencegate.example/clients/go"
	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
	"github.com/lib/pq"
)

var lastToken int64 = 100

// source is a token that tests change. Tokens only grow.
type source struct{ value atomic.Value }

func (s *source) Fence() string {
	value, _ := s.value.Load().(string)
	return value
}

func (s *source) next() int64 {
	token := atomic.AddInt64(&lastToken, 1)
	s.value.Store(fmt.Sprint(token))
	return token
}

// A pool as the tests use it.
type pool interface {
	exec(query string) error
	value(query string) (string, error)
	begin() (transaction, error)
}

type transaction interface {
	exec(query string) error
	rollback() error
}

type sqlPool struct{ *sql.DB }

func (p sqlPool) exec(query string) error { _, err := p.Exec(query); return err }
func (p sqlPool) value(query string) (value string, err error) {
	err = p.QueryRow(query).Scan(&value)
	return
}
func (p sqlPool) begin() (transaction, error) { tx, err := p.Begin(); return sqlTransaction{tx}, err }

type sqlTransaction struct{ *sql.Tx }

func (t sqlTransaction) exec(query string) error { _, err := t.Exec(query); return err }
func (t sqlTransaction) rollback() error         { return t.Rollback() }

type pgxPool struct{ *pgxpool.Pool }

func (p pgxPool) exec(query string) error { _, err := p.Exec(context.Background(), query); return err }
func (p pgxPool) value(query string) (value string, err error) {
	err = p.QueryRow(context.Background(), query).Scan(&value)
	return
}
func (p pgxPool) begin() (transaction, error) {
	tx, err := p.Begin(context.Background())
	return pgxTransaction{tx}, err
}

type pgxTransaction struct{ pgx.Tx }

func (t pgxTransaction) exec(query string) error {
	_, err := t.Exec(context.Background(), query)
	return err
}
func (t pgxTransaction) rollback() error { return t.Rollback(context.Background()) }

// withEachPool runs a test with pools of one connection: those of database/sql with each driver, and pgxpool with each hook.
func withEachPool(t *testing.T, test func(t *testing.T, world *world, tokens *source, pool pool)) {
	withEachDriver(t, func(t *testing.T, world *world, driver sqlDriver) {
		tokens := &source{}
		db := sql.OpenDB(client.Connector(driver.connector(t, address(world.proxy, "app", "app")), tokens))
		db.SetMaxOpenConns(1)
		t.Cleanup(func() { db.Close() })
		test(t, world, tokens, sqlPool{db})
	})
	for _, hook := range []string{"BeforeAcquire", "PrepareConn"} {
		hook := hook
		t.Run("pgxpool/"+hook, func(t *testing.T) {
			world, tokens := theWorld(t), &source{}
			config, err := pgxpool.ParseConfig(address(world.proxy, "app", "app") + " pool_max_conns=1")
			must(t, err)
			config.BeforeAcquire = client.BeforeAcquire(tokens, (*pgx.Conn).Exec)
			if hook == "PrepareConn" { // pgx 4 has no such hook
				prepare := client.PrepareConn(tokens, (*pgx.Conn).Exec)
				config.BeforeAcquire = func(ctx context.Context, conn *pgx.Conn) bool {
					isValid, err := prepare(ctx, conn)
					return isValid && err == nil
				}
			}
			pool, err := pgxpool.ConnectConfig(limited(t), config)
			must(t, err)
			t.Cleanup(pool.Close)
			test(t, world, tokens, pgxPool{pool})
		})
	}
}

func TestAPoolNeverKeepsAnOlderToken(t *testing.T) {
	withEachPool(t, func(t *testing.T, _ *world, tokens *source, pool pool) {
		expect := func(what string) {
			t.Helper()
			value, err := pool.value("SELECT current_setting('lease.fence')")
			must(t, err)
			if value != tokens.Fence() {
				t.Fatalf("%s: the session sends %q instead of %q", what, value, tokens.Fence())
			}
		}
		expect("no token")
		tokens.next()
		expect("the first token")
		process, err := pool.value("SELECT pg_backend_pid()::text")
		must(t, err)
		must(t, pool.exec("INSERT INTO plain VALUES (1)"))
		tx, err := pool.begin()
		must(t, err)
		must(t, tx.exec("SET lease.fence = 5"))
		must(t, tx.rollback())
		expect("after a rollback")
		must(t, pool.exec("SET lease.fence = 5"))
		expect("after the session's own value")
		must(t, pool.exec("RESET ALL"))
		expect("after RESET ALL")
		tokens.value.Store("")
		expect("no longer the leader")
		var missing *client.MissingToken
		if err := pool.exec("INSERT INTO plain VALUES (1)"); !errors.As(client.Classify(err), &missing) {
			t.Fatalf("a write without a token: %v", err)
		}
		if same, err := pool.value("SELECT pg_backend_pid()::text"); err != nil || same != process {
			t.Fatalf("the connection was not reused: %v, %v, %v", process, same, err)
		}
		tokens.next()
		expect("a newer token")
		if same, err := pool.value("SELECT pg_backend_pid()::text"); err != nil || same == process {
			t.Fatalf("the connection was kept with a newer token: %v", err)
		}
	})
}

func TestAConnectionThatWasCutOffIsDiscarded(t *testing.T) {
	withEachPool(t, func(t *testing.T, world *world, tokens *source, pool pool) {
		token := tokens.next()
		tx, err := pool.begin()
		must(t, err)
		must(t, tx.exec("INSERT INTO plain VALUES (2)"))
		newer := tokens.next()
		world.raise(t, newer)
		err = client.Classify(tx.exec("SELECT 1"))
		_ = tx.rollback()
		var stale *client.StaleToken
		if !errors.As(err, &stale) || stale.Resource != "plain" || stale.Presented != token || stale.Highest != newer || stale.Outcome != "rolled_back" {
			t.Fatalf("%#v", err)
		}
		must(t, pool.exec("INSERT INTO plain VALUES (3)"))

		// In a failed transaction that database/sql does not know.
		must(t, pool.exec("BEGIN"))
		_ = pool.exec("SELECT 1 / 0")
		must(t, pool.exec("INSERT INTO plain VALUES (3)"))

		// While it is idle.
		process, err := pool.value("SELECT pg_backend_pid()::text")
		must(t, err)
		world.sql(t, "app", "SELECT pg_terminate_backend("+process+", 60000)")
		must(t, pool.exec("INSERT INTO plain VALUES (4)"))
	})
}

func TestALeaderWritesThroughThePool(t *testing.T) {
	withEachDriver(t, func(t *testing.T, world *world, driver sqlDriver) {
		lease := lease(t, world.postgres, driver)
		db := sql.OpenDB(client.Connector(driver.connector(t, address(world.proxy, "app", "app")), lease))
		defer db.Close()
		for turn := 0; turn < 2; turn++ {
			must(t, client.RunAsLeader(limited(t), lease, func(ctx context.Context, token int64) error {
				_, err := db.ExecContext(ctx, "INSERT INTO ticks VALUES ($1)", "go")
				return err
			}))
		}
		var missing *client.MissingToken
		if _, err := db.Exec("INSERT INTO ticks VALUES ('go')"); !errors.As(client.Classify(err), &missing) || missing.Resource != "scheduler" {
			t.Fatalf("a write after the release: %v", err)
		}
	})
}

func TestErrorsHaveTypesAndFields(t *testing.T) {
	withEachPool(t, func(t *testing.T, world *world, tokens *source, pool pool) {
		token := tokens.next()
		must(t, pool.exec("INSERT INTO plain VALUES (5)"))
		tokens.value.Store(fmt.Sprint(token - 1))
		err := client.Classify(pool.exec("INSERT INTO plain VALUES (5)"))
		var stale *client.StaleToken
		if !errors.As(err, &stale) || stale.Presented != token-1 || stale.Highest != token || stale.Outcome != "" || client.IsRetryable(err) {
			t.Fatalf("%#v", err)
		}
		var ofPq *pq.Error
		var ofPgx *pgconn.PgError
		if !errors.As(err, &ofPq) && !errors.As(err, &ofPgx) || !strings.Contains(err.Error(), "is stale") {
			t.Fatalf("the driver's error is hidden: %v", err)
		}
		if _, ofSQL := pool.(sqlPool); ofSQL { // pgx 4 would try until its context ends
			tokens.value.Store("none")
			if err := pool.exec("SELECT 1"); !strings.Contains(fmt.Sprint(err), "lease.fence") {
				t.Fatalf("the source's value is not a token: %v", err)
			}
		}
		tokens.value.Store("9000000000000000000")
		var unissued *client.UnissuedToken
		if err := pool.exec("INSERT INTO ticks VALUES ('5')"); !errors.As(client.Classify(err), &unissued) {
			t.Fatal(err)
		}
		tokens.next()
		var invalid *client.InvalidToken
		if err := pool.exec("SET lease.fence = 'none'"); !errors.As(client.Classify(err), &invalid) {
			t.Fatal(err)
		}
		var unverifiable *client.UnverifiableStatement
		if err := pool.exec("DO 'BEGIN END'"); !errors.As(client.Classify(err), &unverifiable) || client.IsRetryable(err) {
			t.Fatal(err)
		}
	})
	withEachDriver(t, func(t *testing.T, world *world, driver sqlDriver) {
		bare := sql.OpenDB(client.Connector(driver.connector(t, address(world.proxy, "app", "bare")), client.SourceFunc(func() string { return "1" })))
		defer bare.Close()
		_, err := bare.Exec("INSERT INTO plain VALUES (6)")
		var unavailable *client.FenceUnavailable
		if !errors.As(client.Classify(err), &unavailable) || client.IsRetryable(err) || !strings.Contains(unavailable.Hint, "fencegate init") {
			t.Fatalf("%v", err)
		}
	})
}
