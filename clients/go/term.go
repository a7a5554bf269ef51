package fencegate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
)

const (
	// A loss is announced this long before the deadline: the work needs time to stop.
	notice = 100 * time.Millisecond
	// Go's timers stop while the machine is suspended. This is the maximum delay in noticing a deadline that passed then.
	slice = 100 * time.Millisecond
)

// ErrNotHeld reports that this process does not lead, or no longer leads.
var ErrNotHeld = errors.New("this process does not lead")

// errGone is the definite answer that the lease has ended.
var errGone = errors.New("the lease has ended")

// term is one leadership, from the win to the loss.
type term struct {
	token      int64
	ttl, every time.Duration
	renew      func(context.Context) error
	ended      <-chan struct{} // closed if the coordinator's client reports the end; may be nil
	lost       chan struct{}   // closed at the loss

	mutex    sync.Mutex
	deadline time.Time // a TTL after the last answered renewal was sent
	reason   error     // of the loss
}

// remaining is the time until that instant by the clock that shows less. The monotonic clock stops while the machine is
// suspended, and the wall clock may be set back.
func remaining(instant time.Time) time.Duration {
	now := time.Now()
	return least(instant.Sub(now), instant.Round(0).Sub(now.Round(0)))
}

func least(first time.Duration, others ...time.Duration) time.Duration {
	for _, other := range others {
		if other < first {
			first = other
		}
	}
	return first
}

// attempt is the time for one renewal before another is sent too. A late answer still counts.
func (t *term) attempt() time.Duration { return t.ttl / 9 }

func (t *term) end(reason error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.reason == nil {
		t.reason = reason
		close(t.lost)
	}
}

// state returns the deadline, or why this term has ended.
func (t *term) state() (time.Time, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.reason == nil && remaining(t.deadline) <= 0 {
		return t.deadline, errors.New("the lease expired")
	}
	return t.deadline, t.reason
}

// keep renews the lease until the term ends. It never waits for a renewal: drivers may block for longer than their
// context. A renewal that is answered after the announcement does not extend the lease.
func (t *term) keep() {
	type answer struct {
		sent time.Time
		err  error
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	answers := make(chan answer)
	failure := errors.New("the lease was not renewed in time")
	deadline, _ := t.state()
	next := deadline.Add(t.every - t.ttl)
	for {
		end := deadline.Add(-notice)
		if remaining(end) <= 0 {
			t.end(failure)
			return
		}
		if remaining(next) <= 0 {
			sent := time.Now()
			next = sent.Add(t.attempt())
			go func() {
				limited, done := context.WithDeadline(ctx, end)
				defer done()
				select {
				case answers <- answer{sent, t.renew(limited)}:
				case <-ctx.Done():
				}
			}()
		}
		select {
		case <-t.lost: // released
			return
		case <-t.ended:
			t.end(errGone)
			return
		case answer := <-answers:
			switch renewed := answer.sent.Add(t.ttl); {
			case remaining(end) <= 0: // too late
			case errors.Is(answer.err, errGone):
				t.end(answer.err)
				return
			case answer.err != nil:
				failure = fmt.Errorf("the lease was not renewed in time: %w", answer.err)
			case renewed.After(deadline):
				deadline = renewed
				next = deadline.Add(t.every - t.ttl)
				t.mutex.Lock()
				t.deadline = deadline
				t.mutex.Unlock()
			}
		case <-time.After(least(remaining(next), remaining(end), slice)):
		}
	}
}

// leadership is the current or last term of an election, safe for concurrent use.
type leadership struct {
	mutex sync.Mutex
	last  *term
}

var noTerm = func() *term {
	lost := make(chan struct{})
	close(lost)
	return &term{lost: lost, reason: errors.New("no lease was acquired")}
}()

func (l *leadership) term() *term {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.last == nil {
		return noTerm
	}
	return l.last
}

// start begins a term, unless its deadline is near.
func (l *leadership) start(t *term, sent time.Time) bool {
	t.deadline = sent.Add(t.ttl)
	t.lost = make(chan struct{})
	if remaining(t.deadline) <= notice {
		return false
	}
	l.mutex.Lock()
	l.last = t
	l.mutex.Unlock()
	go t.keep()
	return true
}

// Token returns the fencing token, or ErrNotHeld and the reason if this process does not lead. Every later leader has a
// higher token.
func (l *leadership) Token() (int64, error) {
	t := l.term()
	if _, err := t.state(); err != nil {
		return 0, fmt.Errorf("%w: %v", ErrNotHeld, err)
	}
	return t.token, nil
}

// Fence returns the token as the value of lease.fence, or "" if this process does not lead.
func (l *leadership) Fence() string {
	token, err := l.Token()
	if err != nil {
		return ""
	}
	return strconv.FormatInt(token, 10)
}

// Deadline returns the time until which the lease certainly lasts, unless it is revoked: a TTL after the last answered
// renewal was sent.
func (l *leadership) Deadline() time.Time {
	deadline, _ := l.term().state()
	return deadline
}

// Lost returns a channel that is closed when the current term ends: 100 ms before its deadline if the lease cannot be
// renewed. It is closed while this process does not lead.
func (l *leadership) Lost() <-chan struct{} { return l.term().lost }
