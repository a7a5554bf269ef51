package fencegate

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
)

// Rejection has the fields of a fencing error. It wraps the driver's error.
type Rejection struct {
	Resource           string
	Presented, Highest int64  // 0 if the error does not name them
	Outcome            string // of a session that was cut off: "rolled_back" or "unknown"
	Hint               string
	Err                error
}

// Error is the driver's message.
func (r *Rejection) Error() string { return r.Err.Error() }

// Unwrap returns the driver's error.
func (r *Rejection) Unwrap() error { return r.Err }

type (
	// StaleToken is LF001: a newer leader has written. Stop this work and campaign again.
	StaleToken struct{ Rejection }
	// MissingToken is LF002: the session has no token for a fenced resource that it wrote to.
	MissingToken struct{ Rejection }
	// InvalidToken is LF003: lease.fence is not a token, or the transaction has written under another token.
	InvalidToken struct{ Rejection }
	// UnverifiableStatement is LF004: the proxy cannot determine what the statement writes.
	UnverifiableStatement struct{ Rejection }
	// UnissuedToken is LF005: the election has not issued this token to its current leader, or the lease has ended.
	UnissuedToken struct{ Rejection }
	// FenceUnavailable is LF006: the proxy cannot prove which token is the highest. Nothing was written.
	FenceUnavailable struct{ Rejection }
)

// Classify wraps a driver's error in the type of its SQLSTATE, for errors.As. It returns all other errors unchanged.
func Classify(err error) error {
	state := sqlState(err)
	if !strings.HasPrefix(state, "LF00") || errors.As(err, new(interface{ rejection() *Rejection })) {
		return err
	}
	rejection := Rejection{Hint: field(err, "Hint"), Err: err}
	for _, part := range strings.Fields(field(err, "Detail")) {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "resource":
			rejection.Resource = value
		case "presented":
			rejection.Presented, _ = strconv.ParseInt(value, 10, 64)
		case "highest":
			rejection.Highest, _ = strconv.ParseInt(value, 10, 64)
		case "outcome":
			rejection.Outcome = value
		}
	}
	switch state {
	case "LF001":
		return &StaleToken{rejection}
	case "LF002":
		return &MissingToken{rejection}
	case "LF003":
		return &InvalidToken{rejection}
	case "LF004":
		return &UnverifiableStatement{rejection}
	case "LF005":
		return &UnissuedToken{rejection}
	case "LF006":
		return &FenceUnavailable{rejection}
	}
	return err
}

func (r *Rejection) rejection() *Rejection { return r }

// IsRetryable reports that nothing was written, and that the same transaction may succeed under the same token.
func IsRetryable(err error) bool {
	if errors.Is(err, ErrNotHeld) {
		return false
	}
	switch state := sqlState(err); state {
	case "LF004":
		return strings.Contains(field(err, "Hint"), "The token is now in force")
	case "LF006":
		return !strings.Contains(field(err, "Hint"), "Retrying will not help")
	default:
		// Serialization failure, deadlock, too many connections, cannot connect now.
		return state == "40001" || state == "40P01" || state == "53300" || state == "57P03"
	}
}

// sqlState returns the SQLSTATE of a driver's error. *pq.Error and *pgconn.PgError have the method.
func sqlState(err error) string {
	var stated interface{ SQLState() string }
	if errors.As(err, &stated) {
		return stated.SQLState()
	}
	return ""
}

// field returns a field of a driver's error. *pq.Error and *pgconn.PgError have Detail and Hint.
func field(err error, name string) string {
	var stated interface{ SQLState() string }
	if !errors.As(err, &stated) {
		return ""
	}
	if value := reflect.Indirect(reflect.ValueOf(stated)); value.Kind() == reflect.Struct {
		if field := value.FieldByName(name); field.IsValid() && field.Kind() == reflect.String {
			return field.String()
		}
	}
	return ""
}

// isTransient reports that a request for a lease may be repeated: the server did not answer, or its SQLSTATE has the
// class of connections, transactions, resources, object states, operators or the system.
func isTransient(err error) bool {
	state := sqlState(err)
	return len(state) < 2 || strings.Contains(" 08 25 40 53 55 57 58 XX ", " "+state[:2]+" ")
}
