package fencegate

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strconv"
	"time"
)

// Election is a Lease, an Etcd, or another election whose tokens only grow.
type Election interface {
	Acquire(context.Context) error
	Token() (int64, error)
	Lost() <-chan struct{}
	Release(context.Context) error
}

// LostError reports that leadership was lost before the work returned. Work that was sent to a server may have taken
// effect.
type LostError struct {
	Reason error
	Work   error // what the work returned
}

func (e *LostError) Error() string {
	if e.Work == nil || errors.Is(e.Work, context.Canceled) {
		return "leadership was lost: " + e.Reason.Error()
	}
	return "leadership was lost: " + e.Reason.Error() + "; the work ended with: " + e.Work.Error()
}

// Is reports whether the target is ErrNotHeld.
func (e *LostError) Is(target error) bool { return target == ErrNotHeld }

// Unwrap returns the error of the work.
func (e *LostError) Unwrap() error { return e.Work }

// Claim returns a step for [RunAsLeader] that puts the election's token in force for these resources, and waits until
// older holders are gone: what this process reads afterwards is current. It connects to the proxy, and retries until the
// context is done or leadership is lost. After a StaleToken or an UnissuedToken, another process leads.
func Claim(proxy driver.Connector, resources ...string) func(context.Context, Election) error {
	return func(ctx context.Context, election Election) error {
		for {
			token, err := election.Token()
			if err != nil {
				return err
			}
			if err = claim(ctx, proxy, token, resources); err == nil || !IsRetryable(err) {
				return Classify(err)
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// claim returns when the context is done, even if the driver waits for the proxy.
func claim(ctx context.Context, proxy driver.Connector, token int64, resources []string) error {
	db := sql.OpenDB(Connector(initialized{proxy, settings}, SourceFunc(func() string { return strconv.FormatInt(token, 10) })))
	defer func() { go db.Close() }() // some drivers wait for the server
	db.SetMaxOpenConns(1)
	return untilDone(ctx, func(ctx context.Context) error {
		for _, resource := range resources {
			if _, err := db.ExecContext(ctx, "SELECT fencegate.claim($1)", resource); err != nil {
				return err
			}
		}
		return nil
	})
}

// RunAsLeader waits until this process leads, runs the steps and the work with its token, and releases the election when
// the work has returned. It cancels the context of the work and the steps as soon as leadership is lost, and returns a
// *LostError then. To lead again, call it again.
//
//	RunAsLeader(ctx, lease, work, fencegate.Claim(proxy, "scheduler"))
func RunAsLeader(ctx context.Context, election Election, work func(ctx context.Context, token int64) error,
	before ...func(context.Context, Election) error) error {
	if err := election.Acquire(ctx); err != nil {
		return Classify(err)
	}
	defer func() {
		// Also if ctx is done. An election that cannot be released ends by itself.
		patience, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = election.Release(patience)
	}()
	lost := election.Lost()
	token, err := election.Token()
	if err != nil {
		return &LostError{Reason: err}
	}
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-lost:
			cancel()
		case <-working.Done():
		}
	}()
	for _, step := range before {
		if err = step(working, election); err != nil {
			break
		}
	}
	if err == nil {
		err = work(working, token)
	}
	err = Classify(err)
	if _, reason := election.Token(); reason != nil {
		return &LostError{reason, err}
	}
	return err
}
