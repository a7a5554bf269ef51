package tests

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	client "fencegate.example/clients/go"
)

func lease(t *testing.T, server *postgres, driver sqlDriver) *client.Lease {
	lease := client.NewLease(driver.connector(t, server.address("app", "app")), election)
	t.Cleanup(func() { _ = lease.Release(context.Background()) })
	return lease
}

func TestALeaseIsHeldByOneLeader(t *testing.T) {
	withEachDriver(t, func(t *testing.T, world *world, driver sqlDriver) {
		first, second := lease(t, world.postgres, driver), lease(t, world.postgres, driver)
		if _, err := first.Token(); !errors.Is(err, client.ErrNotHeld) {
			t.Fatalf("a token before the win: %v", err)
		}
		soon(t, "nothing is held", first.Lost())
		must(t, first.Acquire(limited(t)))
		token, err := first.Token()
		must(t, err)
		if held, err := second.TryAcquire(limited(t)); held || err != nil {
			t.Fatalf("two leaders: %v, %v", held, err)
		}
		if first.Acquire(limited(t)) == nil {
			t.Fatal("a held lease is acquired again")
		}
		must(t, first.Release(limited(t)))
		soon(t, "a release ends the term", first.Lost())
		if _, err := first.Token(); !errors.Is(err, client.ErrNotHeld) || first.Fence() != "" {
			t.Fatalf("a token after the release: %v, %q", err, first.Fence())
		}
		held, err := second.TryAcquire(limited(t))
		must(t, err)
		if next, _ := second.Token(); !held || next <= token {
			t.Fatalf("held %v, token %d after %d", held, next, token)
		}
	})
}

func TestAWaitingCandidateFollows(t *testing.T) {
	withEachDriver(t, func(t *testing.T, world *world, driver sqlDriver) {
		first, second := lease(t, world.postgres, driver), lease(t, world.postgres, driver)
		must(t, first.Acquire(limited(t)))
		acquired := make(chan error, 1)
		go func() { acquired <- second.Acquire(limited(t)) }()
		must(t, first.Release(limited(t)))
		must(t, <-acquired)
	})
}

// The answer to the acquisition is lost.
func TestACanceledCampaignLeavesNoLease(t *testing.T) {
	world := theWorld(t)
	acquired := make(chan struct{})
	canceled := client.NewLease(silent{drivers[0].connector(t, world.address("app", "app")), acquired}, election)
	canceled.TTL = time.Hour
	ctx, cancel := context.WithCancel(limited(t))
	go func() {
		<-acquired
		cancel()
	}()
	if err := canceled.Acquire(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	must(t, lease(t, world.postgres, drivers[0]).Acquire(limited(t)))
}

// silent does not answer queries, which take effect.
type silent struct {
	driver.Connector
	answered chan struct{}
}

func (s silent) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := s.Connector.Connect(ctx)
	return silentConn{conn, s.answered}, err
}

type silentConn struct {
	driver.Conn
	answered chan struct{}
}

func (s silentConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return s.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (s silentConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := s.Conn.(driver.QueryerContext).QueryContext(context.Background(), query, args)
	if err == nil {
		rows.Close()
		close(s.answered)
		<-ctx.Done()
		err = ctx.Err()
	}
	return nil, err
}

func TestRenewalsKeepTheLease(t *testing.T) {
	withEachDriver(t, func(t *testing.T, world *world, driver sqlDriver) {
		lease := lease(t, world.postgres, driver)
		lease.TTL = 2 * time.Second
		must(t, lease.Acquire(limited(t)))
		token, err := lease.Token()
		must(t, err)
		first := lease.Deadline()
		until(t, "the first TTL has passed", func() bool { return time.Now().After(first) })
		if now, err := lease.Token(); err != nil || now != token {
			t.Fatalf("token %d, then %d: %v", token, now, err)
		}
	})
}

// announcedInTime waits for the loss, which comes 100 ms before the deadline: before 50 ms are left.
func announcedInTime(t *testing.T, election interface {
	Lost() <-chan struct{}
	Deadline() time.Time
}) {
	t.Helper()
	lost, late := election.Lost(), make(chan struct{})
	go func() {
		// A renewal that was sent before the stop may still be answered.
		left := func() time.Duration { return time.Until(election.Deadline()) - 50*time.Millisecond }
		for left() > 0 {
			time.Sleep(left())
		}
		close(late)
	}()
	select {
	case <-lost:
	case <-late:
		select {
		case <-lost:
		default:
			t.Fatal("the deadline is near, and no loss was announced")
		}
	}
}

// The server is stopped, so that renewals get no answer. lib/pq ignores its context then.
func TestALossIsAnnouncedBeforeTheDeadline(t *testing.T) {
	server := startPostgres(t)
	for _, driver := range drivers {
		driver := driver
		t.Run(driver.name, func(t *testing.T) {
			lease := lease(t, server, driver)
			lease.TTL = 3 * time.Second
			must(t, lease.Acquire(limited(t)))
			thaw := freeze(t, server.process)
			announcedInTime(t, lease)
			if token, err := lease.Token(); !errors.Is(err, client.ErrNotHeld) {
				t.Fatalf("token %d after the loss: %v", token, err)
			}
			// The server is still stopped.
			ctx, cancel := context.WithTimeout(limited(t), 50*time.Millisecond)
			if lease.Release(ctx) == nil {
				t.Fatal("a release without an answer")
			}
			cancel()
			ctx, cancel = context.WithTimeout(limited(t), 50*time.Millisecond)
			if _, err := client.NewLease(driver.connector(t, server.address("app", "app")), "other").TryAcquire(ctx); err == nil {
				t.Fatal("an acquisition without an answer")
			}
			cancel()
			thaw()
			until(t, "it leads again", func() bool {
				held, err := lease.TryAcquire(limited(t))
				return err == nil && held
			})
			must(t, lease.Release(limited(t)))
		})
	}
}

func TestAnEndedLeaseIsALoss(t *testing.T) {
	withEachDriver(t, func(t *testing.T, world *world, driver sqlDriver) {
		lease := lease(t, world.postgres, driver)
		lease.TTL = 2 * time.Second
		must(t, lease.Acquire(limited(t)))
		world.sql(t, "app", "UPDATE fencegate_state.lease SET released = true")
		soon(t, "the loss", lease.Lost())
		if _, err := lease.Token(); !strings.Contains(err.Error(), "the lease has ended") {
			t.Fatal(err)
		}
	})
}

func TestRefusalsEndACampaign(t *testing.T) {
	withEachDriver(t, func(t *testing.T, world *world, driver sqlDriver) {
		refused := client.NewLease(driver.connector(t, world.address("app", "bare")), election)
		if err := refused.Acquire(limited(t)); err == nil {
			t.Fatal("a database without leases")
		}
		invalid := lease(t, world.postgres, driver)
		invalid.RenewEvery = invalid.TTL / 2
		if err := invalid.Acquire(limited(t)); err == nil {
			t.Fatal("no time for a second renewal")
		}
	})
}

func TestALeaseFindsThePrimaryOfItsHosts(t *testing.T) {
	world := theWorld(t)
	folder := temporary(t)
	data := folder + "/data"
	run(t, asPostgres(folder, "pg_basebackup", "-D", data, "-d", world.address("postgres", "postgres"), "-R", "--no-sync", "--checkpoint=fast"))
	standby := serve(t, data)
	for _, driver := range drivers {
		driver := driver
		t.Run(driver.name, func(t *testing.T) {
			nobody := driver.connector(t, address(freePort(t), "app", "app"))
			hosts := client.Hosts(nobody, driver.connector(t, standby.address("app", "app")), driver.connector(t, world.address("app", "app")))
			lease := client.NewLease(hosts, election)
			must(t, lease.Acquire(limited(t)))
			must(t, lease.Release(limited(t)))
		})
	}
}

func TestWorkEndsBeforeTheRelease(t *testing.T) {
	withEachDriver(t, func(t *testing.T, world *world, driver sqlDriver) {
		leader, other := lease(t, world.postgres, driver), lease(t, world.postgres, driver)
		ctx, cancel := context.WithCancel(limited(t))
		err := client.RunAsLeader(ctx, leader, func(ctx context.Context, token int64) error {
			if now, _ := leader.Token(); now != token {
				t.Errorf("token %d, and %d", token, now)
			}
			cancel()
			<-ctx.Done()
			if held, err := other.TryAcquire(limited(t)); held || err != nil {
				t.Errorf("two leaders: %v, %v", held, err)
			}
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrNotHeld) {
			t.Fatal(err)
		}
		if held, err := other.TryAcquire(limited(t)); !held || err != nil {
			t.Fatalf("not released: %v, %v", held, err)
		}
	})
}

func TestALossCancelsTheWork(t *testing.T) {
	withEachDriver(t, func(t *testing.T, world *world, driver sqlDriver) {
		leader := lease(t, world.postgres, driver)
		leader.TTL = 3 * time.Second
		err := client.RunAsLeader(limited(t), leader, func(ctx context.Context, _ int64) error {
			world.sql(t, "app", "UPDATE fencegate_state.lease SET released = true")
			soon(t, "the context ends", ctx.Done())
			return errors.New("own words")
		})
		var lost *client.LostError
		if !errors.As(err, &lost) || !errors.Is(err, client.ErrNotHeld) || lost.Work.Error() != "own words" {
			t.Fatal(err)
		}
	})
}
