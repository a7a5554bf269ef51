// Package fencegate leads with leases in PostgreSQL or elections on etcd, and sends the fencing token to fencegate's
// proxy on every connection of a pool. It has no dependencies, and works with any driver of
// database/sql, with pgx and with etcd's client.
//
// A leader may not know that it has lost. This package stops it in time as long as its process runs; the fence stops it
// in every case.
package fencegate
