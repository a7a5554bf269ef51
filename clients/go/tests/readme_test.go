package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The program runs unchanged, except for the port, in a new module that gets the archives.
func TestTheProgramOfTheREADME(t *testing.T) {
	proxy := os.Getenv("FENCEGATE_MODULES")
	if proxy == "" {
		t.Skip("FENCEGATE_MODULES is not set: see check.sh")
	}
	world := theWorld(t)
	page, err := os.ReadFile("../README.md")
	must(t, err)
	_, program, _ := strings.Cut(string(page), "```go\n")
	program, _, _ = strings.Cut(program, "```\n")
	world.sql(t, "app", "DELETE FROM ticks; INSERT INTO ticks VALUES ('12:00', NULL)")
	folder := temporary(t)
	program = strings.ReplaceAll(program, "6432", strconv.Itoa(world.proxy))
	must(t, os.WriteFile(filepath.Join(folder, "main.go"), []byte(program), 0o644))
	goes := func(arguments ...string) string {
		command := exec.Command("go", arguments...)
		command.Dir = folder
		command.Env = append(os.Environ(), "GO111MODULE=on", "GOFLAGS=-mod=mod -modcacherw", "GOSUMDB=off", "GOPROXY=file://"+proxy,
			"GOPATH="+filepath.Join(folder, "path"))
		return run(t, command)
	}
	goes("mod", "init", "example")
	goes("get", "fencegate.example/clients/go", "github.com/lib/pq")
	if output := goes("run", "."); !strings.Contains(output, "leads with token") {
		t.Fatal(output)
	}
	world.sql(t, "app", "DO $$ BEGIN ASSERT (SELECT run_by = 'go' FROM ticks); END $$")
}
