// Package fencegate leads with leases in PostgreSQL or elections on etcd, and sends the fencing token to fencegate's
// proxy on every connection of a pool. It has no dependencies: any driver of database/sql, pgx and etcd's client fit.
//
// A leader may not know that it has lost. This package stops it in time as long as its process runs; the fence stops it
// in every case.
package fencegate
