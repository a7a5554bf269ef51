package fencegate

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// begin starts a term of two seconds, with renewals every 300 ms.
func begin(t *testing.T, renew func(context.Context) error) *leadership {
	t.Helper()
	leader := &leadership{}
	if !leader.start(&term{token: 1, ttl: 2 * time.Second, every: 300 * time.Millisecond, renew: renew}, time.Now()) {
		t.Fatal("the term did not start")
	}
	return leader
}

func TestTheDeadlineCountsFromTheSending(t *testing.T) {
	sent, answer := make(chan time.Time), make(chan struct{})
	var calls int32
	leader := begin(t, func(ctx context.Context) error {
		if atomic.AddInt32(&calls, 1) > 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		sent <- time.Now()
		<-answer
		return nil
	})
	first := leader.Deadline()
	latest := (<-sent).Add(2 * time.Second)
	time.Sleep(time.Millisecond) // so that the answer is later than the sending
	close(answer)
	for leader.Deadline().Equal(first) {
		select {
		case <-leader.Lost():
			t.Fatal("the answer did not extend the lease")
		default:
		}
	}
	if leader.Deadline().After(latest) {
		t.Fatalf("the deadline is %v too late", leader.Deadline().Sub(latest))
	}
}

func TestALateAnswerDoesNotExtendTheLease(t *testing.T) {
	// In some of them, the keeper sees the answer before it sees the end.
	var leaders [200]*leadership
	var deadlines [200]time.Time
	for i := range leaders {
		leaders[i] = begin(t, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
		deadlines[i] = leaders[i].Deadline()
	}
	for i, leader := range leaders {
		<-leader.Lost()
		if !leader.Deadline().Equal(deadlines[i]) {
			t.Fatalf("extended by %v", leader.Deadline().Sub(deadlines[i]))
		}
	}
}

func TestATokenEndsAtTheDeadlineEvenIfTheKeeperIsLate(t *testing.T) {
	leader := &leadership{last: &term{token: 1, deadline: time.Now()}}
	if token, err := leader.Token(); !errors.Is(err, ErrNotHeld) || leader.Fence() != "" {
		t.Fatalf("token %d: %v", token, err)
	}
}

func TestALossHasTheReasonOfTheFailedRenewals(t *testing.T) {
	leader := begin(t, func(context.Context) error { return errors.New("no route") })
	<-leader.Lost()
	if _, err := leader.Token(); !strings.Contains(err.Error(), "no route") {
		t.Fatal(err)
	}
}

// A renewal after which another is sent too is slow, not lost.
func TestASlowRenewalStillCounts(t *testing.T) {
	second := make(chan struct{})
	var calls int32
	leader := begin(t, func(ctx context.Context) error {
		switch atomic.AddInt32(&calls, 1) {
		case 1:
			<-second
			return nil
		case 2:
			close(second)
		}
		<-ctx.Done()
		return ctx.Err()
	})
	for first := leader.Deadline(); leader.Deadline().Equal(first); {
		select {
		case <-leader.Lost():
			t.Fatal("the first renewal was abandoned")
		default:
		}
	}
}

func TestAnAnswerAfterTheDeadlineStartsNoTerm(t *testing.T) {
	leader := &leadership{}
	if leader.start(&term{token: 1, ttl: time.Second}, time.Now().Add(-time.Second)) {
		t.Fatal("a term without time")
	}
	if _, err := leader.Token(); !errors.Is(err, ErrNotHeld) {
		t.Fatal(err)
	}
}

// The monotonic clock of a machine that was suspended shows an hour less than has passed.
func TestTimeInASuspensionCounts(t *testing.T) {
	suspended := func(instant time.Time) time.Time {
		// The second field of time.Time is its monotonic reading.
		parts := (*struct {
			wall uint64
			ext  int64
		})(unsafe.Pointer(&instant))
		parts.ext += int64(time.Hour)
		return instant
	}
	if left := remaining(suspended(time.Now().Add(-time.Second))); left > 0 {
		t.Fatalf("%v remain", left)
	}
	if left := remaining(suspended(time.Now().Add(time.Minute))); left <= 0 || left > time.Minute {
		t.Fatalf("%v remain", left)
	}
}
