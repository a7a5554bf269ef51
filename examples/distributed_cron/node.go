// The node of the cron once more, in Go, with etcd's own package for elections: nothing of fencegate but its port.
//
//	node -id go -etcd http://127.0.0.1:2379 -election /cron/leader -database "host=… port=6432 user=app dbname=app"
package main

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/lib/pq"
	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

var (
	id       = flag.String("id", "go", "the name of this node")
	endpoint = flag.String("etcd", "http://127.0.0.1:2379", "the URL of etcd")
	name     = flag.String("election", "/cron/leader", "the election")
	database = flag.String("database", "", "where the ticks go: a connection string")
	ttl      = flag.Int("ttl", 3, "of the lease, in seconds")
	period   = flag.Int64("period", 1, "between two ticks, in seconds")
)

func say(format string, arguments ...any) {
	fmt.Println(*id, fmt.Sprintf(format, arguments...))
}

// Writes one row per tick until the context ends, which it does when leadership is lost.
func work(ctx context.Context, token int64) error {
	db, err := sql.Open("postgres", fmt.Sprintf("%s options='-c lease.fence=%d'", *database, token))
	if err != nil {
		return err
	}
	defer db.Close()
	// Raises the fence before it reads what the last leader did: seconds since 1970, or NULL.
	var last sql.NullInt64
	begun, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer begun.Rollback()
	if _, err := begun.ExecContext(ctx, "LOCK TABLE ticks IN SHARE ROW EXCLUSIVE MODE"); err != nil {
		return err
	}
	if err := begun.QueryRowContext(ctx, "SELECT extract(epoch FROM max(tick))::bigint FROM ticks").Scan(&last); err != nil {
		return err
	}
	if err := begun.Commit(); err != nil {
		return err
	}
	for {
		// The latest round time that is due, or else the next one: not a time.Ticker, which counts from when it began.
		now := time.Now()
		tick := now.Unix() / *period * *period
		if !last.Valid || tick <= last.Int64 {
			tick += *period
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(time.Unix(tick, 0))):
		}
		if skipped := (tick-last.Int64) / *period - 1; last.Valid && skipped > 0 {
			say("skipped %d", skipped)
		}
		_, err := db.ExecContext(ctx, "INSERT INTO ticks (tick, node) VALUES (to_timestamp($1), $2)", tick, *id)
		if err != nil {
			return err
		}
		say("tick %s", time.Unix(tick, 0).UTC().Format("15:04:05"))
		last = sql.NullInt64{Int64: tick, Valid: true}
	}
}

// Campaigns once and leads once.
func lead(ctx context.Context, client *clientv3.Client) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(*ttl))
	if err != nil {
		return err
	}
	defer session.Close()
	election := concurrency.NewElection(session, *name)
	if err := election.Campaign(ctx, *id); err != nil {
		return err
	}
	say("leads under token %d", election.Rev())
	working, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		// The loss is an event: between two looks at a flag the lease could end.
		select {
		case <-session.Done():
			say("lost: the session has ended")
			stop()
		case <-working.Done():
		}
	}()
	err = work(working, election.Rev())
	if ctx.Err() != nil {
		// The work has ended: the next leader may begin.
		if err := election.Resign(context.Background()); err != nil {
			return err
		}
		say("resigned")
		return nil
	}
	return err
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{*endpoint}, DialTimeout: 5 * time.Second})
	for err == nil && ctx.Err() == nil {
		if err := lead(ctx, client); err != nil && ctx.Err() == nil {
			say("stops: %v", err)
			time.Sleep(time.Second)
		}
	}
	if err != nil {
		say("has no etcd: %v", err)
		os.Exit(1)
	}
}
