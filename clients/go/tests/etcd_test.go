package tests

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	client "fencegate.example/clients/go"
	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

// candidate is a session with an election.
type candidate struct {
	*client.Etcd
	election *concurrency.Election
	session  *concurrency.Session
	etcd     *clientv3.Client
}

func campaign(t *testing.T, url, name string, ttl int) *candidate {
	t.Helper()
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, DialTimeout: patience})
	must(t, err)
	t.Cleanup(func() { etcd.Close() })
	session, err := concurrency.NewSession(etcd, concurrency.WithTTL(ttl))
	must(t, err)
	election := concurrency.NewElection(session, name)
	return &candidate{client.FromElection(election, session, session.Lease(), etcd.KeepAliveOnce), election, session, etcd}
}

func TestAnElectionOnEtcd(t *testing.T) {
	world := theWorld(t)
	leader, follower := campaign(t, world.etcd, "/cron/leader", 10), campaign(t, world.etcd, "/cron/leader", 10)
	must(t, leader.Acquire(limited(t)))
	token, err := leader.Token()
	must(t, err)
	shown, err := leader.election.Leader(limited(t))
	must(t, err)
	if shown.Kvs[0].CreateRevision != token || string(shown.Kvs[0].Value) != leader.Holder {
		t.Fatalf("token %d of %s: %v", token, leader.Holder, shown.Kvs[0])
	}
	// `fencegate lead` takes part in the same election.
	lead := fencegate("lead", "--etcd", world.etcd, "--election", "/cron/leader", "--no-wait", "--", "true")
	if _ = lead.Run(); lead.ProcessState.ExitCode() != 73 {
		t.Fatalf("two leaders: %v", lead.ProcessState)
	}
	followed := make(chan error, 1)
	go func() { followed <- follower.Acquire(limited(t)) }()
	db := sql.OpenDB(client.Connector(drivers[0].connector(t, address(world.proxy, "app", "app")), leader))
	defer db.Close()
	_, err = db.Exec("INSERT INTO elected VALUES (1)")
	must(t, err)
	must(t, leader.Release(limited(t)))
	must(t, <-followed)
	if next, _ := follower.Token(); next <= token {
		t.Fatalf("token %d after %d", next, token)
	}
	if _, err := leader.Token(); !errors.Is(err, client.ErrNotHeld) {
		t.Fatalf("a token after the release: %v", err)
	}
	must(t, follower.Release(limited(t)))
}

func TestTheEndOfTheSessionOrTheKeyIsALoss(t *testing.T) {
	world := theWorld(t)
	for name, end := range map[string]func(*candidate) error{
		"revoked":  func(c *candidate) error { _, err := c.etcd.Revoke(limited(t), c.session.Lease()); return err },
		"orphaned": func(c *candidate) error { c.session.Orphan(); return nil },
		"deleted":  func(c *candidate) error { _, err := c.etcd.Delete(limited(t), c.election.Key()); return err },
	} {
		end := end
		t.Run(name, func(t *testing.T) {
			leader := campaign(t, world.etcd, "/cron/"+name, 3)
			err := client.RunAsLeader(limited(t), leader, func(ctx context.Context, _ int64) error {
				must(t, end(leader))
				soon(t, "the context ends", ctx.Done())
				return ctx.Err()
			})
			if !errors.Is(err, client.ErrNotHeld) {
				t.Fatal(err)
			}
		})
	}
}

// Campaign itself returns success.
func TestACandidateWhoseLeaseEndedDoesNotLead(t *testing.T) {
	world := theWorld(t)
	leader, waiting := campaign(t, world.etcd, "/cron/phantom", 10), campaign(t, world.etcd, "/cron/phantom", 10)
	must(t, leader.Acquire(limited(t)))
	waiting.session.Orphan() // the client no longer notices the end of the lease
	waiting.Etcd = client.FromElection(waiting.election, &endless{}, waiting.session.Lease(), waiting.etcd.KeepAliveOnce)
	acquired := make(chan error, 1)
	go func() { acquired <- waiting.Acquire(limited(t)) }()
	until(t, "it waits", func() bool {
		keys, err := waiting.etcd.Get(limited(t), "/cron/phantom/", clientv3.WithPrefix())
		return err == nil && len(keys.Kvs) == 2
	})
	_, err := waiting.etcd.Revoke(limited(t), waiting.session.Lease())
	must(t, err)
	must(t, leader.Release(limited(t)))
	if err := <-acquired; err == nil {
		t.Fatal("a phantom leads")
	}
	if _, err := waiting.Token(); !errors.Is(err, client.ErrNotHeld) {
		t.Fatalf("a phantom has a token: %v", err)
	}
}

// endless is a session that does not end.
type endless struct{}

func (*endless) Done() <-chan struct{} { return nil }

func TestALossOnEtcdIsAnnouncedBeforeTheDeadline(t *testing.T) {
	url, process := startEtcd(t)
	leader := campaign(t, url, "/cron/frozen", 3)
	must(t, leader.Acquire(limited(t)))
	thaw := freeze(t, process)
	defer thaw()
	announcedInTime(t, leader)
}

func TestAWinThatCannotBeProvedIsResigned(t *testing.T) {
	world := theWorld(t)
	unproved, follower := campaign(t, world.etcd, "/cron/unproved", 60), campaign(t, world.etcd, "/cron/unproved", 10)
	silent := errors.New("no answer")
	unproved.Etcd = client.FromElection(unproved.election, unproved.session, unproved.session.Lease(),
		func(context.Context, clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) { return nil, silent })
	if err := unproved.Acquire(limited(t)); !errors.Is(err, silent) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	must(t, follower.Acquire(ctx))
	if follower.Acquire(ctx) == nil {
		t.Fatal("an election that is held is acquired again")
	}
	must(t, follower.Release(limited(t)))
}
