//go:build linux

package acp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// helperGuard makes TestHelper be a process of its own, for what a test cannot
// do to its whole process.
const helperGuard = "ACP_TEST_HELPER"

func helper(t *testing.T, what string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"-test.run=^TestHelper$", "-test.timeout=120s", "--"}, args...)...) // #nosec G204 G702 -- this test binary
	cmd.Env = append(os.Environ(), helperGuard+"="+what)
	return cmd
}

// TestHelper is what the helper processes do.
func TestHelper(t *testing.T) {
	what := os.Getenv(helperGuard)
	if what == "" {
		t.Skip("it is run by others")
	}
	args := os.Args[1:]
	for len(args) > 0 && args[0] != "--" {
		args = args[1:]
	}
	args = args[1:]
	if what == "leaves its group" {
		leaveGroup(t)
	}
	a, err := acp.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := acp.Config{Workspace: args[0], Argv: args[1:]}
	switch what {
	case "parent":
		s, err := a.Start(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = s.RunTurn(context.Background(), "hello", nil)
		select {} // we are killed
	case "no descriptors":
		noDescriptors(t, a, c)
	case "no processes":
		noProcesses(t, a, c)
	}
}

// leaveGroup is a runtime that moves into the group of a child of its own.
func leaveGroup(t *testing.T) {
	signal.Ignore(syscall.SIGTERM)
	child := exec.Command("/bin/sleep", "60")
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // which the child's life hangs on
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setpgid(0, child.Process.Pid); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewScanner(os.Stdin)
	for i, result := range []string{`"protocolVersion":1`, `"sessionId":"s"`} {
		in.Scan()
		fmt.Printf("{\"id\":%d,\"result\":{%s}}\n", i+1, result)
	}
	time.Sleep(time.Minute)
}

// TestLeaderLeavesGroup: the runtime itself has left the group that we made for
// it, and is killed all the same.
func TestLeaderLeavesGroup(t *testing.T) {
	together(t)
	f := newFake(t)
	f.Argv, f.Env = helper(t, "leaves its group").Args, append(f.Env, helperGuard+"=leaves its group")
	f.StopGrace = graceBound
	s := f.mustStart()
	began := time.Now()
	err := s.Stop(context.Background())
	want{from: graceBound, to: graceBound}.check(t, "Stop", err, time.Since(began))
}

// noDescriptors starts with every number of free descriptors, from none on.
func noDescriptors(t *testing.T, a *acp.Adapter, c acp.Config) {
	start := func() error {
		s, err := a.Start(context.Background(), c)
		if err == nil {
			err = s.Stop(context.Background())
		}
		return err
	}
	if err := start(); err != nil { // and with it what the first start opens for good
		t.Fatal(err)
	}
	before := descriptors()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for low := limit; ; low.Cur++ {
		if failed == 0 {
			low.Cur = 3
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
			t.Fatal(err)
		}
		err := start()
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		if left := without(descriptors(), before); len(left) > 0 {
			t.Fatalf("limit %d: %v left", low.Cur, left)
		}
		if err == nil {
			break
		}
		failed++
		wantKind(t, err, acp.ErrPortExit)
		if !errors.Is(err, syscall.EMFILE) {
			t.Errorf("limit %d: %v", low.Cur, err)
		}
	}
	if failed < 7 {
		t.Errorf("only %d limits were too low", failed)
	}
}

// noProcesses starts where the system refuses another process. Root is never
// refused, so it becomes somebody else; and the Go runtime must not need a
// thread meanwhile, so it makes some ahead. Then it may again: the limit goes back.
func noProcesses(t *testing.T, a *acp.Adapter, c acp.Config) {
	var ready, threads sync.WaitGroup
	hold := make(chan struct{})
	for range 16 {
		ready.Add(1)
		threads.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-hold
		})
	}
	ready.Wait()
	close(hold)
	threads.Wait()
	if os.Getuid() == 0 {
		if err := syscall.Setuid(65534); err != nil {
			t.Fatal(err)
		}
	}
	const nproc = 6 // RLIMIT_NPROC, which package syscall does not name
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(nproc, &limit); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(nproc, &syscall.Rlimit{Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	before := descriptors()
	_, err := a.Start(context.Background(), c)
	if again := syscall.Setrlimit(nproc, &limit); again != nil {
		t.Fatal(again)
	}
	if wantKind(t, err, acp.ErrPortExit, "the agent runtime could not be started"); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("%v, want EAGAIN", err)
	}
	if left := without(descriptors(), before); len(left) > 0 {
		t.Errorf("%v left", left)
	}
}

// TestSpawnFails: what keeps a runtime from being started has its kind and its
// name, and leaves nothing.
func TestSpawnFails(t *testing.T) {
	census(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, content string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	text := file("text", "", 0o600)
	garbage := file("garbage", "\x7fELF", 0o700)
	script := file("script", "#!/none/such\n", 0o700)
	busy := file("busy", "", 0o700)
	writer, err := os.OpenFile(busy, os.O_WRONLY, 0) // #nosec G304 -- ours
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = writer.Close() })
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	file("bin/there", "#!/bin/sh\n", 0o700)
	t.Chdir(dir)
	tests := []struct {
		name string
		argv []string
		path string
		kind acp.ErrorKind
		is   error
		text string
	}{
		{"missing", []string{filepath.Join(dir, "none")}, "", acp.ErrAgentNotFound, os.ErrNotExist, filepath.Join(dir, "none")},
		{"not in PATH", []string{"program-of-nobody"}, "", acp.ErrAgentNotFound, exec.ErrNotFound, "program-of-nobody"},
		{"not executable", []string{text}, "", acp.ErrAgentNotFound, os.ErrPermission, text},
		{"a directory", []string{dir}, "", acp.ErrAgentNotFound, nil, dir},
		{"relative PATH entry", []string{"there"}, "bin", acp.ErrAgentNotFound, exec.ErrDot, "there"},
		{"dot in PATH", []string{"script"}, ".", acp.ErrAgentNotFound, exec.ErrDot, "script"},
		{"empty PATH entry", []string{"script"}, ":/none", acp.ErrAgentNotFound, exec.ErrDot, "script"},
		{"no interpreter", []string{script}, "", acp.ErrPortExit, syscall.ENOENT, script},
		{"no program", []string{garbage}, "", acp.ErrPortExit, syscall.ENOEXEC, garbage},
		{"being written", []string{busy}, "", acp.ErrPortExit, syscall.ETXTBSY, busy},
		{"over-long argument", []string{"/bin/true", strings.Repeat("x", 4<<20)}, "", acp.ErrPortExit, syscall.E2BIG, ""},
		{"over-long list", append([]string{"/bin/true"}, repeated(strings.Repeat("y", 1<<16), 300)...), "", acp.ErrPortExit, syscall.E2BIG, ""},
		{"NUL", []string{"/bin/true", "a\x00b"}, "", acp.ErrPortExit, syscall.EINVAL, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.path != "" {
				t.Setenv("PATH", test.path)
			}
			before := descriptors()
			a, err := acp.New(nil)
			if err != nil {
				t.Fatal(err)
			}
			s, err := a.Start(context.Background(), acp.Config{Workspace: dir, Argv: test.argv})
			if s != nil {
				t.Error("it started")
			}
			wantKind(t, err, test.kind, test.text)
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%.300v, want %v", err, test.is)
			}
			if n := len(fmt.Sprint(err)); n > 1000 {
				t.Errorf("the error is of %d bytes", n)
			}
			if left := without(descriptors(), before); len(left) > 0 {
				t.Errorf("%v left", left)
			}
		})
	}
}

// TestSpawnRefused: the system has no descriptor or no process left. The limits
// are of a whole process, so this is done in others.
func TestSpawnRefused(t *testing.T) {
	together(t)
	for _, what := range []string{"no descriptors", "no processes"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, "-plain")
			if what == "no processes" { // it may not read what is ours
				f.Workspace, f.Argv = "/", []string{"/bin/true"}
			}
			cmd := helper(t, what, append([]string{f.Workspace}, f.Argv...)...)
			began := time.Now()
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "PASS") {
				t.Errorf("%v after %v\n%s", err, time.Since(began), out)
			}
		})
	}
}
