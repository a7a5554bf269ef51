package fencegate

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Maximum number of connections of a lease. It needs more than one only while a server does not answer.
const mostConnections = 4

// Overrides the role's defaults.
const settings = "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off"

var errHeld = errors.New("this process leads already: release the election first")

// Lease is an election that leases in PostgreSQL decide. Set its fields before Acquire.
type Lease struct {
	TTL        time.Duration // default: 10 s
	RenewEvery time.Duration // default: a third of the TTL
	Holder     string        // shown as the leader; default: host name, process ID and a random number

	leadership
	connector driver.Connector
	election  string
	mutex     sync.Mutex
	db        *sql.DB // of the current term
}

// NewLease returns a lease that opens its own connections.
func NewLease(connector driver.Connector, election string) *Lease {
	return &Lease{TTL: 10 * time.Second, Holder: defaultHolder(), connector: connector, election: election}
}

func defaultHolder() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s:%d:%s", host, os.Getpid(), random(4))
}

func random(bytes int) string {
	number := make([]byte, bytes)
	if _, err := rand.Read(number); err != nil {
		panic(err) // the system has no random numbers
	}
	return fmt.Sprintf("%x", number)
}

// Acquire waits until this process leads. It returns an error if the server refuses, or does not answer for a TTL.
func (l *Lease) Acquire(ctx context.Context) error {
	_, err := l.campaign(ctx, true)
	return err
}

// TryAcquire returns false if another process leads.
func (l *Lease) TryAcquire(ctx context.Context) (bool, error) {
	return l.campaign(ctx, false)
}

func (l *Lease) campaign(ctx context.Context, waits bool) (bool, error) {
	every := l.RenewEvery
	if every == 0 {
		every = l.TTL / 3
	}
	if l.TTL < 2*time.Second || l.TTL > time.Hour || every < l.TTL/9 || every > l.TTL*4/9 {
		return false, fmt.Errorf("a TTL of %v with renewals every %v is invalid: use 2 s to 1 h, and a ninth to four ninths of it", l.TTL, every)
	}
	if _, err := l.Token(); err == nil {
		return false, errHeld
	}
	db := sql.OpenDB(initialized{l.connector, settings})
	db.SetMaxOpenConns(mostConnections)
	db.SetMaxIdleConns(1)
	// The database gives the same holder the same token, so each campaign needs a name of its own.
	t := &term{ttl: l.TTL, every: every}
	holder := l.Holder + "#" + random(8)
	ttl := l.TTL.Seconds()
	answered := time.Now()
	for {
		sent := time.Now()
		var token int64
		err := bounded(ctx, l.TTL/3, func(ctx context.Context) error {
			const acquire = "SELECT token FROM fencegate.acquire($1, $2, make_interval(secs => $3))"
			return db.QueryRowContext(ctx, acquire, l.election, holder, ttl).Scan(&token)
		})
		if err == nil {
			t.token = token
			t.renew = func(ctx context.Context) error {
				_, err := db.ExecContext(ctx, "SELECT fencegate.renew($1, $2, make_interval(secs => $3))", l.election, token, ttl)
				var stale *StaleToken
				if err = Classify(err); errors.As(err, &stale) {
					return fmt.Errorf("%w: %v", errGone, err)
				}
				return err
			}
			if l.start(t, sent) {
				l.use(db)
				return true, nil
			}
		}
		if err == nil || errors.Is(err, sql.ErrNoRows) {
			answered = sent
		}
		isTaken := errors.Is(err, sql.ErrNoRows) && !waits
		if isTaken {
			err = nil
		} else if ctx.Err() != nil {
			err = ctx.Err()
		} else if err == nil || isTransient(err) && time.Since(answered) < l.TTL {
			select {
			case <-time.After(least(l.TTL/9, time.Second)):
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		// An unanswered attempt may have taken effect.
		go func() {
			defer db.Close()
			if !isTaken {
				_ = bounded(context.Background(), l.TTL, func(ctx context.Context) error {
					const release = "SELECT fencegate.release($1, token) FROM fencegate.leader($1) WHERE holder = $2"
					_, err := db.ExecContext(ctx, release, l.election, holder)
					return err
				})
			}
		}()
		return false, Classify(err)
	}
}

// use makes db the current term's.
func (l *Lease) use(db *sql.DB) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.db != nil && l.db != db {
		go l.db.Close() // some drivers wait for the server
	}
	l.db = db
}

// Release ends the leadership, so that the next candidate can lead immediately. Call it when all work under the token
// has ended. If the server cannot be reached, the lease ends by itself.
func (l *Lease) Release(ctx context.Context) error {
	t := l.term()
	t.end(errors.New("it was released"))
	l.mutex.Lock()
	db := l.db
	l.db = nil
	l.mutex.Unlock()
	if db == nil {
		return nil
	}
	defer func() { go db.Close() }()
	return Classify(bounded(ctx, l.TTL/3, func(ctx context.Context) error {
		_, err := db.ExecContext(ctx, "SELECT fencegate.release($1, $2)", l.election, t.token)
		return err
	}))
}

// bounded returns at that limit even if call ignores its context, as lib/pq does while a server does not answer.
func bounded(ctx context.Context, limit time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return untilDone(ctx, call)
}

func untilDone(ctx context.Context, call func(context.Context) error) error {
	result := make(chan error, 1)
	go func() { result <- call(ctx) }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
