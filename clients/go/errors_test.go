package fencegate

import (
	"errors"
	"fmt"
	"testing"
)

type refusal struct{ Code, Detail, Hint string }

func (r *refusal) Error() string    { return "refused" }
func (r *refusal) SQLState() string { return r.Code }

func TestRetryableErrors(t *testing.T) {
	for _, this := range []struct {
		code, hint  string
		isRetryable bool
	}{
		{"LF001", "", false},
		{"LF002", "", false},
		{"LF003", "", false},
		{"LF004", "Name the function in the policy.", false},
		{"LF004", "The token is now in force. Nothing was written: roll back, and retry.", true},
		{"LF005", "", false},
		{"LF006", "Nothing was written. Retry.", true},
		{"LF006", "Nothing was written. Retrying will not help. Run the GRANT as a superuser.", false},
		{"40001", "", true},
		{"40P01", "", true},
		{"53300", "", true},
		{"57P01", "", false}, // a COMMIT in flight may have taken effect
		{"08006", "", false},
		{"57P03", "", true},
		{"", "", false},
	} {
		err := fmt.Errorf("work: %w", &refusal{Code: this.code, Hint: this.hint})
		if IsRetryable(err) != this.isRetryable || IsRetryable(Classify(err)) != this.isRetryable {
			t.Errorf("%+v", this)
		}
		if IsRetryable(&LostError{Reason: ErrNotHeld, Work: err}) {
			t.Errorf("%+v after the loss", this)
		}
	}
}

func TestOtherErrorsAreUnchanged(t *testing.T) {
	for _, err := range []error{nil, errors.New("other"), &refusal{Code: "42501"}, &refusal{Code: "LF009"}} {
		if Classify(err) != err {
			t.Errorf("%v", err)
		}
	}
	once := Classify(&refusal{Code: "LF001", Detail: "resource=shard/caf%C3%A9 presented=4 highest=5 outcome=unknown"})
	var stale *StaleToken
	if Classify(once) != once || !errors.As(once, &stale) || stale.Resource != "shard/caf%C3%A9" || stale.Outcome != "unknown" {
		t.Errorf("%#v", once)
	}
}
