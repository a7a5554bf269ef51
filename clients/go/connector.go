package fencegate

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
)

// Source provides the value of lease.fence: a token, a list by resource such as "scheduler=47, billing=7", or "" while
// this process does not lead. It must be safe for concurrent use. Every election of this package is a Source.
type Source interface{ Fence() string }

// SourceFunc is a function as a Source.
type SourceFunc func() string

// Fence calls the function.
func (f SourceFunc) Fence() string { return f() }

// Connector wraps a driver's connector, for sql.OpenDB. Whenever the pool hands out a connection, the connection gets
// the current token, or none while this process does not lead. A connection that has sent another token is discarded,
// because the proxy ends such a session when a new leader takes over. A connection that was cut off is discarded too.
func Connector(inner driver.Connector, source Source) driver.Connector {
	return &connector{inner, source}
}

// PgxConn is implemented by *pgx.Conn.
type PgxConn interface {
	comparable
	IsClosed() bool
}

// BeforeAcquire returns a hook of pgx's pool that does the same:
//
//	config.BeforeAcquire = fencegate.BeforeAcquire(lease, (*pgx.Conn).Exec)
func BeforeAcquire[Conn PgxConn, Tag any](source Source, exec func(Conn, context.Context, string, ...any) (Tag, error)) func(context.Context, Conn) bool {
	var mutex sync.Mutex
	sent := map[Conn]string{}
	next := func(conn Conn) (string, error) {
		mutex.Lock()
		defer mutex.Unlock()
		for other := range sent {
			if other.IsClosed() {
				delete(sent, other)
			}
		}
		last := sent[conn]
		statement, err := set(source, &last)
		sent[conn] = last
		return statement, err
	}
	return func(ctx context.Context, conn Conn) bool {
		statement, err := next(conn)
		if err == nil {
			_, err = exec(conn, ctx, statement)
		}
		return err == nil
	}
}

// PrepareConn is [BeforeAcquire] for pgx 5.7.5 and later, where it replaces that hook:
//
//	config.PrepareConn = fencegate.PrepareConn(lease, (*pgx.Conn).Exec)
func PrepareConn[Conn PgxConn, Tag any](source Source, exec func(Conn, context.Context, string, ...any) (Tag, error)) func(context.Context, Conn) (bool, error) {
	isSet := BeforeAcquire(source, exec)
	return func(ctx context.Context, conn Conn) (bool, error) {
		return isSet(ctx, conn), ctx.Err()
	}
}

// set returns the statement that makes a session send the current token, unless it has sent another one before.
func set(source Source, last *string) (string, error) {
	fence := source.Fence()
	if fence != "" {
		if *last != "" && *last != fence {
			return "", driver.ErrBadConn
		}
		*last = fence
	}
	return "SET lease.fence = '" + strings.ReplaceAll(fence, "'", "''") + "'", nil
}

// Hosts connects to the first host that can be reached and is not a standby, for drivers without lists of hosts.
func Hosts(hosts ...driver.Connector) driver.Connector { return hostList(hosts) }

type hostList []driver.Connector

func (h hostList) Driver() driver.Driver { return h[0].Driver() }

func (h hostList) Connect(ctx context.Context) (conn driver.Conn, err error) {
	for _, host := range h {
		// A standby refuses it.
		if conn, err = (initialized{host, "SET transaction_read_only = off"}).Connect(ctx); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// initialized runs a statement on each new connection.
type initialized struct {
	driver.Connector
	statement string
}

func (i initialized) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := i.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := exec(ctx, inner, i.statement); err != nil {
		inner.Close()
		return nil, err
	}
	return inner, nil
}

type connector struct {
	driver.Connector
	source Source
}

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	var last string
	statement, _ := set(c.source, &last)
	inner, err := initialized{c.Connector, statement}.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{inner, c.source, last}, nil
}

func exec(ctx context.Context, inner driver.Conn, statement string) error {
	if execer, ok := inner.(driver.ExecerContext); ok {
		if _, err := execer.ExecContext(ctx, statement, nil); !errors.Is(err, driver.ErrSkip) {
			return err
		}
	}
	prepared, err := inner.Prepare(statement)
	if err != nil {
		return err
	}
	defer prepared.Close()
	_, err = prepared.Exec(nil) //nolint:staticcheck // drivers without ExecerContext have nothing else
	return err
}

// conn forwards all optional interfaces of the inner connection. database/sql has an alternative for each.
type conn struct {
	driver.Conn
	source Source
	last   string // the last token that was sent
}

// Inner returns the driver's connection, for sql.Conn.Raw.
func (c *conn) Inner() driver.Conn { return c.Conn }

// ResetSession is called when the pool hands out a used connection. database/sql ignores all errors but ErrBadConn, after
// which it discards the connection.
func (c *conn) ResetSession(ctx context.Context) error {
	if resetter, ok := c.Conn.(driver.SessionResetter); ok && resetter.ResetSession(ctx) != nil {
		return driver.ErrBadConn
	}
	statement, err := set(c.source, &c.last)
	if err != nil || exec(ctx, c.Conn, statement) != nil {
		return driver.ErrBadConn
	}
	return nil
}

func (c *conn) IsValid() bool {
	validator, ok := c.Conn.(driver.Validator)
	return !ok || validator.IsValid()
}

func (c *conn) Ping(ctx context.Context) error {
	if pinger, ok := c.Conn.(driver.Pinger); ok {
		return pinger.Ping(ctx)
	}
	return nil
}

func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if preparer, ok := c.Conn.(driver.ConnPrepareContext); ok {
		return preparer.PrepareContext(ctx, query)
	}
	return c.Prepare(query)
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if execer, ok := c.Conn.(driver.ExecerContext); ok {
		return execer.ExecContext(ctx, query, args)
	}
	return nil, driver.ErrSkip
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if queryer, ok := c.Conn.(driver.QueryerContext); ok {
		return queryer.QueryContext(ctx, query, args)
	}
	return nil, driver.ErrSkip
}

func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	if beginner, ok := c.Conn.(driver.ConnBeginTx); ok {
		return beginner.BeginTx(ctx, options)
	}
	if options != (driver.TxOptions{}) {
		return nil, errors.New("the driver does not support options of transactions")
	}
	return c.Begin() //nolint:staticcheck // drivers without ConnBeginTx have nothing else
}

func (c *conn) CheckNamedValue(value *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(value)
	}
	return driver.ErrSkip
}
