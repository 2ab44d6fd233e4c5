//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package acp

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// spawned is a process under test. Nothing of it outlives the test.
type spawned struct {
	*process
	ended bool
}

func spawnTest(t *testing.T, argv ...string) *spawned {
	t.Helper()
	p, err := spawn(context.Background(), argv, t.TempDir(), os.Environ(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := &spawned{process: p}
	// A broken guard is to fail the test, not to hang it.
	if err := p.stdout.(*os.File).SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !s.ended {
			s.kill(t)
			s.end()
		}
	})
	return s
}

func spawnShell(t *testing.T, script string) *spawned {
	t.Helper()
	return spawnTest(t, "/bin/sh", "-c", script)
}

func (s *spawned) kill(t *testing.T) {
	t.Helper()
	if err := s.signal(true); err != nil {
		t.Error(err)
	}
}

// end waits for the exit, has the process reaped and closes the pipes.
func (s *spawned) end() exitStatus {
	<-s.exited
	s.ended = true
	close(s.mayReap)
	status := <-s.reaped
	_, _, _ = s.stdin.Close(), s.stdout.Close(), s.stderr.Close()
	return status
}

// rest reads stdout to its end, which comes when no process holds it any more.
func (s *spawned) rest(t *testing.T) string {
	t.Helper()
	b, err := io.ReadAll(s.stdout)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// ready waits for the line "ready" and returns the reader behind it.
func (s *spawned) ready(t *testing.T) *bufio.Reader {
	t.Helper()
	r := bufio.NewReader(s.stdout)
	if line, err := r.ReadString('\n'); line != "ready\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	return r
}

// descriptors lists what this process has open.
func descriptors(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return strings.Join(names, " ")
}

func TestExitStatus(t *testing.T) {
	for _, tt := range []struct {
		script string
		want   exitStatus
	}{
		{"exit 0", exitStatus{"exit status 0", 0}},
		{"exit 3", exitStatus{"exit status 3", 3}},
		{"exit 127", exitStatus{"exit status 127", 127}},
		{"kill -KILL $$", exitStatus{"signal: killed", -1}},
		{"kill -TERM $$", exitStatus{"signal: terminated", -1}},
		{"(ulimit -c unlimited) 2>/dev/null && ulimit -c unlimited; kill -SEGV $$", exitStatus{"signal: segmentation fault", -1}},
	} {
		if got := spawnShell(t, tt.script).end(); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.script, got, tt.want)
		}
	}
}

func TestSpawnPassesEverything(t *testing.T) {
	dir := t.TempDir()
	p, err := spawn(context.Background(), []string{"/bin/sh", "-c", `pwd -P; echo "$A$B$#$1"; cat; echo error >&2`, "sh", "one two"},
		dir, []string{"A=a", "PATH=" + os.Getenv("PATH")}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := &spawned{process: p}
	if group, err := syscall.Getpgid(s.pid); err != nil || group != s.pid {
		t.Errorf("group %d, %v, of process %d", group, err, s.pid)
	}
	if _, err := io.WriteString(s.stdin, "input\n"); err != nil {
		t.Error(err)
	}
	if err := s.stdin.Close(); err != nil {
		t.Error(err)
	}
	real, err2 := filepath.EvalSymlinks(dir)
	if err2 != nil {
		t.Fatal(err2)
	}
	if got, want := s.rest(t), real+"\na1one two\ninput\n"; got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
	if got, err := io.ReadAll(s.stderr); string(got) != "error\n" {
		t.Errorf("stderr %q, %v", got, err)
	}
	if got := s.end(); got.code != 0 {
		t.Error(got)
	}
}

// The leader stays a zombie until the loop allows the reap, however long that
// takes, so that its group can be killed.
func TestExitIsObservedBeforeTheReap(t *testing.T) {
	s := spawnShell(t, "exec 3<&0; cat <&3 & exit 5") // cat outlives the leader
	<-s.exited
	if err := syscall.Kill(s.pid, 0); err != nil {
		t.Fatalf("the leader is gone: %v", err)
	}
	select {
	case status := <-s.reaped:
		t.Fatalf("reaped: %v", status)
	default:
	}
	s.kill(t)
	if out := s.rest(t); out != "" {
		t.Error(out)
	}
	if got := s.end(); got != (exitStatus{"exit status 5", 5}) {
		t.Error(got)
	}
	if err := syscall.Kill(s.pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("not reaped: %v", err)
	}
}

func TestMayReapBeforeTheExit(t *testing.T) {
	s := spawnTest(t, "/bin/cat")
	s.ended = true
	close(s.mayReap)
	_ = s.stdin.Close()
	if got := <-s.reaped; got.code != 0 {
		t.Error(got)
	}
	<-s.exited
	_, _ = s.stdout.Close(), s.stderr.Close()
}

func TestGracefulSignalReachesTheGroup(t *testing.T) {
	// Stdout ends when the grandchild, too, is over.
	const script = `trap 'echo trapped; exit 4' TERM; sh -c 'echo ready; exec sleep 1000' & wait`
	for _, stopped := range []bool{false, true} {
		s := spawnShell(t, script)
		out := s.ready(t)
		if stopped {
			var status syscall.WaitStatus
			if err := syscall.Kill(-s.pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if _, err := syscall.Wait4(s.pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
				t.Fatalf("not stopped: %v, %v", status, err)
			}
		}
		if err := s.signal(false); err != nil {
			t.Fatal(err)
		}
		if line, err := io.ReadAll(out); string(line) != "trapped\n" {
			t.Fatalf("stopped %v: got %q, %v", stopped, line, err)
		}
		if got := s.end(); got.code != 4 {
			t.Errorf("stopped %v: %v", stopped, got)
		}
	}
}

func TestKillReachesTheGroup(t *testing.T) {
	s := spawnShell(t, `trap '' TERM; sh -c 'echo ready; exec sleep 1000' & wait`)
	out := s.ready(t)
	s.kill(t)
	if _, err := out.ReadByte(); err != io.EOF {
		t.Fatal("the grandchild holds stdout still")
	}
	if got := s.end(); got.text != "signal: killed" {
		t.Error(got)
	}
}

func TestSignalToNobodyIsNoError(t *testing.T) {
	s := spawnShell(t, "exit 0")
	<-s.exited
	for _, kill := range []bool{false, true} {
		if err := s.signal(kill); err != nil {
			t.Errorf("kill %v: %v", kill, err)
		}
	}
	s.end()
}

func TestFailedStartLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/none/such\n"), 0o700); err != nil { // #nosec G306 -- a program
		t.Fatal(err)
	}
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		argv []string
		dir  string
		env  []string
		want error
	}{
		{name: "missing", argv: []string{filepath.Join(dir, "none")}, want: syscall.ENOENT},
		{name: "missing interpreter", argv: []string{script}, want: syscall.ENOENT},
		{name: "directory", argv: []string{dir}, want: syscall.EACCES},
		{name: "not executable", argv: []string{plain}, want: syscall.EACCES},
		{name: "over-long argument", argv: []string{"/bin/sh", strings.Repeat("x", 4<<20)}, want: syscall.E2BIG},
		{name: "NUL in an argument", argv: []string{"/bin/sh", "a\x00b"}, want: syscall.EINVAL},
		{name: "NUL in the environment", argv: []string{"/bin/sh"}, env: []string{"A=a\x00b"}},
		{name: "no working directory", argv: []string{"/bin/sh"}, dir: filepath.Join(dir, "none"), want: syscall.ENOENT},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := descriptors(t)
			_, err := spawn(context.Background(), tt.argv, tt.dir, tt.env, slog.New(slog.DiscardHandler))
			if err == nil || err.Kind != ErrPortExit || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("got %.200v, want port_exit by %v", err, tt.want)
			}
			if after := descriptors(t); after != before {
				t.Errorf("descriptors were %s, are %s", before, after)
			}
		})
	}
}

// Every number of free descriptors, from none to enough. It lowers the limit of
// its whole process, so it runs in one of its own.
func TestSpawnWithoutDescriptors(t *testing.T) {
	const guard = "ACP_TEST_FEW_DESCRIPTORS"
	if os.Getenv(guard) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSpawnWithoutDescriptors$") // #nosec G204 G702 -- this test binary
		cmd.Env = append(os.Environ(), guard+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	end := func(p *process) {
		s := &spawned{process: p}
		_ = s.stdin.Close()
		s.end()
	}
	spawnCat := func() (*process, *Error) {
		return spawn(context.Background(), []string{"/bin/cat"}, "/", nil, slog.New(slog.DiscardHandler))
	}
	p, err := spawnCat() // what the first start opens for good
	if err != nil {
		t.Fatal(err)
	}
	end(p)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	enough := limit
	before := descriptors(t)
	setLimit := func(l syscall.Rlimit) {
		t.Helper()
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
			t.Fatal(err)
		}
	}
	limit.Cur = 3
	setLimit(limit)
	if _, err := openWatch(os.Getpid()); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("the watch opens: %v", err)
	}
	failed := 0
	for ; failed == 0 || err != nil; limit.Cur++ {
		setLimit(limit)
		p, err = spawnCat()
		setLimit(enough)
		if err == nil {
			end(p)
		} else {
			failed++
			if err.Kind != ErrPortExit || !errors.Is(err, syscall.EMFILE) {
				t.Errorf("limit %d: %v", limit.Cur, err)
			}
		}
		if after := descriptors(t); after != before {
			t.Fatalf("limit %d: descriptors were %s, are %s", limit.Cur, before, after)
		}
		if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
			t.Fatalf("limit %d: a child is left: %v", limit.Cur, err)
		}
	}
	if failed < 7 {
		t.Errorf("only %d limits were too low", failed)
	}
}
