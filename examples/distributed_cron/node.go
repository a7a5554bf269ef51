// The node of the cron in Go, with etcd's own package for elections. clients/go sends the token, and stops the work when
// leadership is lost.
//
//	node -id go -etcd http://127.0.0.1:2379 -election /cron/leader -database "host=… port=6432 user=app dbname=app"
package main

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	fencegate "fencegate.example/clients/go"
	"github.com/lib/pq"
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
func work(ctx context.Context, db *sql.DB) error {
	// Time of the last tick in seconds since 1970, or NULL. The claimed token keeps former leaders from changing it.
	var last sql.NullInt64
	if err := db.QueryRowContext(ctx, "SELECT extract(epoch FROM max(tick))::bigint FROM ticks").Scan(&last); err != nil {
		return err
	}
	for {
		// The latest round time that is due, or the next one. A time.Ticker would count from its start.
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
func lead(ctx context.Context, client *clientv3.Client, proxy *pq.Connector) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(*ttl))
	if err != nil {
		return err
	}
	defer session.Close()
	election := fencegate.FromElection(concurrency.NewElection(session, *name), session, session.Lease(), client.KeepAliveOnce)
	election.Holder = *id
	db := sql.OpenDB(fencegate.Connector(proxy, election))
	defer db.Close()
	return fencegate.RunAsLeader(ctx, election, func(ctx context.Context, token int64) error {
		say("leads under token %d", token)
		return work(ctx, db)
	}, fencegate.Claim(proxy, "cron"))
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	proxy, err := pq.NewConnector(*database)
	if err != nil {
		log.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{*endpoint}, DialTimeout: 5 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	for ctx.Err() == nil {
		if err := lead(ctx, client, proxy); ctx.Err() == nil {
			say("stops: %v", err)
			time.Sleep(time.Second)
		}
	}
	say("resigned")
}
