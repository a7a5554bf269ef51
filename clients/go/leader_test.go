package fencegate

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"testing"
)

// issued is an election that leads at once.
type issued struct {
	lost   chan struct{}
	isLost func() bool
}

func newIssued() *issued { return &issued{make(chan struct{}), func() bool { return false }} }

func (*issued) Acquire(context.Context) error { return nil }
func (i *issued) Token() (int64, error) {
	if i.isLost() {
		return 0, ErrNotHeld
	}
	return 7, nil
}
func (i *issued) Lost() <-chan struct{}       { return i.lost }
func (*issued) Release(context.Context) error { return nil }

// refusing is a connection on which claims fail with what next returns.
type refusing struct {
	driver.Conn
	next func() error
}

func (r *refusing) Connect(context.Context) (driver.Conn, error) { return r, nil }
func (r *refusing) Driver() driver.Driver                        { return nil }
func (r *refusing) Close() error                                 { return nil }
func (r *refusing) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	if strings.Contains(query, "claim") {
		return driver.RowsAffected(1), r.next()
	}
	return driver.RowsAffected(0), nil
}

func TestAClaimIsRepeatedWhileTheFenceIsUnavailable(t *testing.T) {
	refusals := []error{&refusal{Code: "LF006"}, &refusal{Code: "LF004", Hint: "The token is now in force. Nothing was written."}, nil}
	next := func() (err error) { err, refusals = refusals[0], refusals[1:]; return }
	works := func(context.Context, int64) error { return errors.New("it works") }
	if err := RunAsLeader(context.Background(), newIssued(), works, Claim(&refusing{next: next}, "scheduler")); err == nil || err.Error() != "it works" || len(refusals) > 0 {
		t.Fatal(err, refusals)
	}
	refusals = []error{&refusal{Code: "LF006", Hint: "Retrying will not help."}}
	var unavailable *FenceUnavailable
	if err := RunAsLeader(context.Background(), newIssued(), works, Claim(&refusing{next: next}, "scheduler")); !errors.As(err, &unavailable) {
		t.Fatal(err)
	}
}

func TestALossEndsTheClaim(t *testing.T) {
	works := func(context.Context, int64) error { t.Error("it works"); return nil }
	for _, isSilent := range []bool{false, true} {
		election, silence := newIssued(), make(chan struct{})
		var once sync.Once
		next := func() error {
			once.Do(func() { close(election.lost) })
			if isSilent {
				<-silence
			}
			return &refusal{Code: "LF006"}
		}
		election.isLost = func() bool {
			select {
			case <-election.lost:
				return true
			default:
				return false
			}
		}
		err := RunAsLeader(context.Background(), election, works, Claim(&refusing{next: next}, "scheduler"))
		var lost *LostError
		if !errors.As(err, &lost) {
			t.Fatalf("silent %v: %v", isSilent, err)
		}
		close(silence)
	}
}
