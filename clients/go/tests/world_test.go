package tests

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v4/stdlib"
	"github.com/lib/pq"
)

// Everything that a test waits for happens within this time, or the test fails.
const patience = 60 * time.Second

const election = "cron/scheduler"

const policies = `version: 1
resources:
  - {name: plain, tables: [public.plain]}
  - {name: scheduler, lease: cron/scheduler, tables: [public.ticks]}
  - {name: elected, election: /cron/leader, tables: [public.elected]}
databases: [app, bare]
`

const schema = `CREATE TABLE plain (id int); CREATE TABLE ticks (tick text, run_by text); CREATE TABLE elected (id int);
	CREATE ROLE app LOGIN; GRANT ALL ON plain, ticks, elected TO app`

var shared struct {
	once sync.Once
	*world
}

// world is a server with leases, etcd and a proxy.
type world struct {
	*postgres
	proxy int
	etcd  string
}

type postgres struct {
	port    int
	process *os.Process
}

var cleanups []func()

func TestMain(m *testing.M) {
	code := m.Run()
	for len(cleanups) > 0 {
		cleanups[len(cleanups)-1]()
		cleanups = cleanups[:len(cleanups)-1]
	}
	os.Exit(code)
}

func fencegate(arguments ...string) *exec.Cmd {
	program := os.Getenv("FENCEGATE_BINARY")
	if program == "" {
		program = "fencegate"
	}
	return exec.Command(program, arguments...)
}

// theWorld returns the servers that most tests share.
func theWorld(t *testing.T) *world {
	t.Helper()
	shared.once.Do(func() {
		world := &world{postgres: startPostgres(t)}
		world.etcd, _ = startEtcd(t)
		folder := temporary(t)
		must(t, os.WriteFile(filepath.Join(folder, "policy.yaml"), []byte(policies), 0o644))
		world.proxy = freePort(t)
		start(t, fencegate("proxy", "--listen", fmt.Sprintf("127.0.0.1:%d", world.proxy),
			"--upstream", fmt.Sprintf("postgres://127.0.0.1:%d", world.port),
			"--control", fmt.Sprintf("postgres://postgres@127.0.0.1:%d/", world.port),
			"--etcd", world.etcd, "--policies", folder))
		until(t, "the proxy listens", func() bool { return accepts(world.proxy) })
		shared.world = world
	})
	if shared.world == nil {
		t.Fatal("the servers did not start")
	}
	return shared.world
}

// startPostgres starts a server with the database app, which has leases, and the database bare.
func startPostgres(t *testing.T) *postgres {
	t.Helper()
	folder := temporary(t)
	data := filepath.Join(folder, "data")
	run(t, asPostgres(folder, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"))
	return serve(t, data)
}

func serve(t *testing.T, data string) *postgres {
	t.Helper()
	server := &postgres{port: freePort(t)}
	server.process = start(t, asPostgres(data, "postgres", "-D", data, "-p", strconv.Itoa(server.port),
		"-c", "unix_socket_directories=", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"))
	until(t, "the server answers", func() bool {
		db, err := sql.Open("postgres", server.address("postgres", "postgres"))
		must(t, err)
		defer db.Close()
		return db.Ping() == nil
	})
	if _, err := os.Stat(filepath.Join(data, "standby.signal")); err == nil {
		return server
	}
	server.sql(t, "postgres", "CREATE DATABASE app")
	server.sql(t, "postgres", "CREATE DATABASE bare")
	server.sql(t, "app", schema)
	server.sql(t, "bare", "CREATE TABLE plain (id int); GRANT ALL ON plain TO app")
	run(t, fencegate("init", "--control", fmt.Sprintf("postgres://postgres@127.0.0.1:%d/app", server.port),
		"--leases-for", "app", "--elections", "*"))
	return server
}

// asPostgres is a command of the newest PostgreSQL, as a user that it accepts.
func asPostgres(folder, program string, arguments ...string) *exec.Cmd {
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + program); len(found) > 0 {
		sort.Slice(found, func(a, b int) bool {
			return len(found[a]) < len(found[b]) || len(found[a]) == len(found[b]) && found[a] < found[b]
		})
		program = found[len(found)-1]
	}
	command := exec.Command(program, arguments...)
	command.Dir = folder
	command.SysProcAttr = &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		account, err := user.Lookup("postgres")
		if err == nil {
			uid, _ := strconv.Atoi(account.Uid)
			gid, _ := strconv.Atoi(account.Gid)
			command.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
			_ = os.Chown(folder, uid, gid)
		}
	}
	return command
}

func startEtcd(t *testing.T) (string, *os.Process) {
	t.Helper()
	client, peer := freePort(t), freePort(t)
	url := fmt.Sprintf("http://127.0.0.1:%d", client)
	peers := fmt.Sprintf("http://127.0.0.1:%d", peer)
	process := start(t, exec.Command("etcd", "--data-dir", temporary(t), "--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers,
		"--log-level", "error", "--unsafe-no-fsync"))
	until(t, "etcd answers", func() bool {
		return exec.Command("etcdctl", "--endpoints", url, "endpoint", "health").Run() == nil
	})
	return url, process
}

// start runs a server until the end of all tests. It dies with this process.
func start(t *testing.T, command *exec.Cmd) *os.Process {
	t.Helper()
	log, err := os.Create(filepath.Join(temporary(t), "log"))
	must(t, err)
	command.Stdout, command.Stderr = log, log
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	must(t, command.Start())
	ended := make(chan struct{})
	go func() { _ = command.Wait(); close(ended) }()
	cleanups = append(cleanups, func() {
		_ = command.Process.Signal(syscall.SIGCONT)
		_ = command.Process.Signal(syscall.SIGQUIT)
		select {
		case <-ended:
		case <-time.After(patience):
			_ = command.Process.Kill()
		}
	})
	return command.Process
}

// freeze stops the server and all its processes, and returns how to continue them.
func freeze(t *testing.T, server *os.Process) (thaw func()) {
	t.Helper()
	var all []int
	signal := func(pid int) {
		if syscall.Kill(pid, syscall.SIGSTOP) == nil {
			all = append(all, pid)
		}
	}
	signal(server.Pid) // starts no more
	children, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range children {
		text, _ := os.ReadFile(file)
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(server.Pid) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			signal(pid)
		}
	}
	var once sync.Once
	thaw = func() {
		once.Do(func() {
			for _, pid := range all {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		})
	}
	t.Cleanup(thaw)
	return thaw
}

func temporary(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "fencegate-go-")
	must(t, err)
	must(t, os.Chmod(folder, 0o755))
	cleanups = append(cleanups, func() { _ = os.RemoveAll(folder) })
	return folder
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func accepts(port int) bool {
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		connection.Close()
	}
	return err == nil
}

func (p *postgres) address(user, database string) string { return address(p.port, user, database) }

func address(port int, user, database string) string {
	return fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=%s sslmode=disable", port, user, database)
}

// sql runs statements as the superuser, around the proxy.
func (p *postgres) sql(t *testing.T, database, statements string) {
	t.Helper()
	db, err := sql.Open("postgres", p.address("postgres", database))
	must(t, err)
	defer db.Close()
	_, err = db.Exec(statements)
	must(t, err)
}

// raise writes to the table plain under a new token.
func (w *world) raise(t *testing.T, token int64) {
	t.Helper()
	db, err := sql.Open("postgres", address(w.proxy, "app", "app")+fmt.Sprintf(" options='-c lease.fence=%d'", token))
	must(t, err)
	defer db.Close()
	_, err = db.Exec("DELETE FROM plain WHERE false")
	must(t, err)
}

// A driver of database/sql.
type sqlDriver struct {
	name    string
	connect func(address string) (driver.Connector, error)
}

var drivers = []sqlDriver{
	{"pq", func(address string) (driver.Connector, error) { return pq.NewConnector(address) }},
	{"pgx", func(address string) (driver.Connector, error) {
		return stdlib.GetDefaultDriver().(driver.DriverContext).OpenConnector(address)
	}},
}

func (d sqlDriver) connector(t *testing.T, address string) driver.Connector {
	t.Helper()
	connector, err := d.connect(address)
	must(t, err)
	return connector
}

// withEachDriver runs a test with lib/pq and with pgx.
func withEachDriver(t *testing.T, test func(*testing.T, *world, sqlDriver)) {
	world := theWorld(t)
	for _, driver := range drivers {
		driver := driver
		t.Run(driver.name, func(t *testing.T) { test(t, world, driver) })
	}
}

func run(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, output)
	}
	return string(output)
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

// soon waits for a channel to be closed.
func soon(t *testing.T, what string, closed <-chan struct{}) {
	t.Helper()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatalf("timed out: %s", what)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// limited is a context that ends with the patience of the tests.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}
