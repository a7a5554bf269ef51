package tests

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	client "fencegate.example/clients/go"
)

// issued is an election that leads at once, with this token.
type issued int64

func (issued) Acquire(context.Context) error { return nil }
func (i issued) Token() (int64, error)       { return int64(i), nil }
func (issued) Lost() <-chan struct{}         { return nil }
func (issued) Release(context.Context) error { return nil }

func TestOlderHoldersAreGoneBeforeTheWork(t *testing.T) {
	withEachDriver(t, func(t *testing.T, world *world, driver sqlDriver) {
		proxy := driver.connector(t, address(world.proxy, "app", "app"))
		tokens := &source{}
		tokens.next()
		old := sql.OpenDB(client.Connector(proxy, tokens))
		defer old.Close()
		tx, err := old.Begin()
		must(t, err)
		_, err = tx.Exec("INSERT INTO plain VALUES (70)")
		must(t, err)
		reader := sql.OpenDB(proxy)
		defer reader.Close()
		read := func() (rows int) {
			must(t, reader.QueryRow("SELECT count(*) FROM plain WHERE id = 70").Scan(&rows))
			return
		}
		hasWorked := false
		work := func(context.Context, int64) error {
			before := read()
			err := client.Classify(tx.Commit())
			var stale *client.StaleToken
			if !errors.As(err, &stale) || stale.Outcome != "rolled_back" || before != 0 || read() != 0 {
				t.Errorf("%v, %d rows", err, before)
			}
			hasWorked = true
			return nil
		}
		must(t, client.RunAsLeader(limited(t), issued(tokens.next()), work, client.Claim(proxy, "plain")))
		if !hasWorked {
			t.Fatal("the work did not begin")
		}

		older, newer := tokens.next(), tokens.next()
		world.raise(t, newer)
		work = func(context.Context, int64) error { t.Error("a deposed leader works"); return nil }
		err = client.RunAsLeader(limited(t), issued(older), work, client.Claim(proxy, "plain"))
		var stale *client.StaleToken
		if !errors.As(err, &stale) || stale.Presented != older || stale.Highest != newer {
			t.Fatal(err)
		}
	})
}
