package fencegate

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// EtcdElection is implemented by *concurrency.Election of etcd's client.
type EtcdElection interface {
	Campaign(ctx context.Context, value string) error
	Proclaim(ctx context.Context, value string) error
	Resign(ctx context.Context) error
	Rev() int64
}

// EtcdSession is implemented by *concurrency.Session of etcd's client.
type EtcdSession interface{ Done() <-chan struct{} }

// Etcd is an election that etcd decides. A session leads at most once after its lease has ended: create a new one.
type Etcd struct {
	Holder string // shown as the leader; default: host name, process ID and a random number

	leadership
	election  EtcdElection
	session   EtcdSession
	keepAlive func(context.Context) (ttl time.Duration, err error)
	busy      chan struct{} // concurrency.Election is not safe for concurrent use
}

// FromElection adapts an election of etcd's package concurrency:
//
//	session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
//	election := concurrency.NewElection(session, "/cron/scheduler/leader")
//	leader := fencegate.FromElection(election, session, session.Lease(), client.KeepAliveOnce)
//
// It renews the session's lease itself, because the session does not report when its last renewal was sent.
func FromElection[ID ~int64, Response any](election EtcdElection, session EtcdSession, lease ID, keepAliveOnce func(context.Context, ID) (Response, error)) *Etcd {
	keepAlive := func(ctx context.Context) (time.Duration, error) {
		response, err := keepAliveOnce(ctx, lease)
		if err != nil {
			return 0, etcdError(err)
		}
		ttl := reflect.Indirect(reflect.ValueOf(response))
		if ttl.Kind() == reflect.Struct {
			ttl = ttl.FieldByName("TTL")
		}
		if !ttl.IsValid() || !ttl.CanInt() {
			return 0, fmt.Errorf("the response of KeepAliveOnce has no TTL: %T", response)
		}
		return time.Duration(ttl.Int()) * time.Second, nil
	}
	busy := make(chan struct{}, 1)
	return &Etcd{Holder: defaultHolder(), election: election, session: session, keepAlive: keepAlive, busy: busy}
}

// etcdError marks the definite answers. The types of etcd's errors are not available here.
func etcdError(err error) error {
	if err != nil && (strings.Contains(err.Error(), "lease not found") || strings.Contains(err.Error(), "not leader")) {
		return fmt.Errorf("%w: %v", errGone, err)
	}
	return err
}

// exclusive calls a function while no other call uses the election.
func (e *Etcd) exclusive(ctx context.Context, call func() error) error {
	select {
	case e.busy <- struct{}{}:
		defer func() { <-e.busy }()
		return call()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Acquire waits until this process leads.
func (e *Etcd) Acquire(ctx context.Context) error {
	if _, err := e.Token(); err == nil {
		return errHeld
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-e.session.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	err := e.exclusive(ctx, func() error { return e.election.Campaign(ctx, e.Holder) })
	if err == nil {
		if err = e.begin(ctx); err != nil {
			// The candidate's key may exist as long as the session.
			patience, done := context.WithTimeout(context.Background(), 5*time.Second)
			defer done()
			_ = e.Release(patience)
		}
	}
	select {
	case <-e.session.Done():
		return errors.New("the session with etcd has ended: create a new one")
	default:
		return err
	}
}

// begin proves the win, and starts the term: Campaign also returns if the candidate's own lease has expired.
func (e *Etcd) begin(ctx context.Context) error {
	sent := time.Now()
	ttl, err := e.keepAlive(ctx)
	if err != nil {
		return err
	}
	if err := e.proclaim(ctx); err != nil {
		return err
	}
	renew := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, ttl/3)
		defer cancel()
		if _, err := e.keepAlive(ctx); err != nil {
			return err
		}
		return e.proclaim(ctx)
	}
	t := &term{token: e.election.Rev(), ttl: ttl, every: ttl / 3, renew: renew, ended: e.session.Done()}
	if !e.start(t, sent) {
		return fmt.Errorf("%w: etcd answered too late", ErrNotHeld)
	}
	return nil
}

// proclaim checks that the candidate's key still exists. It is the only check that the election offers.
func (e *Etcd) proclaim(ctx context.Context) error {
	return e.exclusive(ctx, func() error { return etcdError(e.election.Proclaim(ctx, e.Holder)) })
}

// Release ends the leadership, so that the next candidate can lead immediately. Call it when all work under the token
// has ended.
func (e *Etcd) Release(ctx context.Context) error {
	e.term().end(errors.New("it was released"))
	return e.exclusive(ctx, func() error { return e.election.Resign(ctx) })
}
