package tests

import (
	"context"
	"errors"
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

func TestACanceledCampaignLeavesNoLease(t *testing.T) {
	withEachDriver(t, func(t *testing.T, world *world, driver sqlDriver) {
		first, second := lease(t, world.postgres, driver), lease(t, world.postgres, driver)
		must(t, first.Acquire(limited(t)))
		ctx, cancel := context.WithCancel(limited(t))
		canceled := make(chan error, 1)
		go func() { canceled <- second.Acquire(ctx) }()
		cancel()
		if err := <-canceled; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		must(t, first.Release(limited(t)))
		must(t, lease(t, world.postgres, driver).Acquire(limited(t)))
	})
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
			lost := lease.Lost()
			// A renewal that was sent before may still be answered.
			passed := make(chan struct{})
			go func() {
				for time.Now().Before(lease.Deadline()) {
					time.Sleep(time.Until(lease.Deadline()))
				}
				close(passed)
			}()
			select {
			case <-lost:
			case <-passed:
				select {
				case <-lost:
				default:
					t.Fatal("the deadline has passed, and no loss was announced")
				}
			}
			if token, err := lease.Token(); !errors.Is(err, client.ErrNotHeld) {
				t.Fatalf("token %d after the loss: %v", token, err)
			}
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
		must(t, lease.Acquire(limited(t)))
		world.sql(t, "app", "UPDATE fencegate_state.lease SET released = true")
		before := lease.Deadline()
		soon(t, "the loss", lease.Lost())
		if !time.Now().Before(before) {
			t.Fatal("the renewal was not refused")
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
