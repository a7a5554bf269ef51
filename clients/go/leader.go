package fencegate

import (
	"context"
	"errors"
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

// RunAsLeader waits until this process leads, runs the work with its token, and releases the election when the work has
// returned. It cancels the work's context as soon as leadership is lost, and returns a *LostError then. To lead again,
// call it again.
func RunAsLeader(ctx context.Context, election Election, work func(ctx context.Context, token int64) error) error {
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
	err = Classify(work(working, token))
	if _, reason := election.Token(); reason != nil {
		return &LostError{reason, err}
	}
	return err
}
