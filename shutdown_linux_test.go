package acp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The pipe of standard output holds twice the usual, the others do not.
func TestPipeSizes(t *testing.T) {
	p, err := spawn(t.Context(), []string{"/bin/true"}, t.TempDir(), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for what, f := range map[string]any{"standard output": p.stdout, "standard error": p.stderr} {
		want := largeBuf
		if what == "standard output" {
			want = 2 * largeBuf
		}
		if got, err := unix.FcntlInt(f.(*os.File).Fd(), unix.F_GETPIPE_SZ, 0); err != nil || got != want {
			t.Errorf("%s: %d bytes, %v; want %d", what, got, err, want)
		}
	}
	close(p.mayReap)
	<-p.reaped
	closeAll([3]*os.File{p.stdin.(*os.File), p.stdout.(*os.File), p.stderr.(*os.File)})
}

// Each way to watch: the exit is seen, the child left to be reaped; a child that
// somebody else has reaped is seen to be foreign.
func TestWatch(t *testing.T) {
	for _, tt := range []struct {
		name string
		open func(pid int) (watch, error)
	}{
		{"pidfd", openWatch},
		{"no pidfd", func(pid int) (watch, error) { return watch{pid: pid}, nil }},
		{"pidfd that cannot be waited for", func(pid int) (watch, error) {
			f, err := os.Open(os.DevNull)
			return watch{pid, f}, err
		}},
	} {
		for _, foreign := range []bool{false, true} {
			t.Run(tt.name+" foreign "+strconv.FormatBool(foreign), func(t *testing.T) {
				cmd := exec.Command("/bin/true")
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				w, err := tt.open(cmd.Process.Pid)
				if err != nil {
					t.Fatal(err)
				}
				defer w.close()
				if foreign {
					if err := cmd.Wait(); err != nil {
						t.Error(err)
					}
				}
				if got := w.await(); got != foreign {
					t.Errorf("await says %v", got)
				}
				if tt.name != "pidfd that cannot be waited for" && w.foreign() != foreign {
					t.Errorf("foreign says %v", !foreign)
				}
				if !foreign {
					if err := cmd.Wait(); err != nil {
						t.Errorf("not left to be reaped: %v", err)
					}
				}
			})
		}
	}
}

// A leader that somebody else reaped leaves a number that may be another
// group's: nothing is signalled, whenever the reap came.
func TestNoSignalBehindAForeignReap(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would close what is forgotten
	for _, seen := range []bool{false, true} {
		before := descriptors(t)
		s := spawnShell(t, "exec 3<&0; cat <&3 & exit 0") // cat stays in the group
		if seen {
			<-s.exited
		}
		if _, err := syscall.Wait4(s.pid, nil, 0, nil); err != nil {
			t.Fatal(err)
		}
		for _, kill := range []bool{false, true} {
			if err := s.signal(kill); err != nil {
				t.Error(err)
			}
		}
		<-s.exited
		s.kill(t)
		if _, err := io.WriteString(s.stdin, "alive"); err != nil {
			t.Error(err)
		}
		_ = s.stdin.Close()
		if got := s.rest(t); got != "alive" {
			t.Errorf("exit seen first %v: the group was signalled", seen)
		}
		if got := s.end(); got != (exitStatus{"exit status unknown", -1}) {
			t.Error(got)
		}
		if after := descriptors(t); after != before {
			t.Errorf("descriptors were %s, are %s", before, after)
		}
	}
}

func TestForeignReapCountsAsReaped(t *testing.T) {
	cmd := exec.Command("/bin/true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w, err := openWatch(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(cmd.Process.Pid, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	// mayReap stays open.
	_, _, reaped := wait(&group{cmd.Process, cmd.Process.Pid, w})
	select {
	case got := <-reaped:
		if got.code != -1 {
			t.Error(got)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits to be allowed to reap")
	}
}

func TestRunningProgramBeingWritten(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	f, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o700) // #nosec G302 G304 -- a program
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	before := descriptors(t)
	_, failure := spawn(context.Background(), []string{program}, "/", nil, slog.New(slog.DiscardHandler))
	if failure == nil || failure.Kind != ErrPortExit || !errors.Is(failure, syscall.ETXTBSY) {
		t.Errorf("got %v", failure)
	}
	if after := descriptors(t); after != before {
		t.Errorf("descriptors were %s, are %s", before, after)
	}
}

// The child has the three pipes and nothing else of ours, and they block: few
// programs expect a non-blocking standard output.
func TestChildDescriptors(t *testing.T) {
	list := func() string {
		s := spawnShell(t, `cd /proc/$$/fdinfo; echo *; exec cat 0 1 2`)
		defer s.end()
		return s.rest(t)
	}
	alone, rest, _ := strings.Cut(list(), "\n")
	other := spawnTest(t, "/bin/cat")
	if got, _, _ := strings.Cut(list(), "\n"); got != alone {
		t.Errorf("a child beside another has %s, alone %s", got, alone)
	}
	_ = other.stdin.Close()
	other.end()

	flags := 0
	for line := range strings.Lines(rest) {
		octal, ok := strings.CutPrefix(line, "flags:\t")
		if !ok {
			continue
		}
		flags++
		if n, err := strconv.ParseInt(strings.TrimSpace(octal), 8, 64); err != nil || n&syscall.O_NONBLOCK != 0 {
			t.Errorf("flags %s, %v", octal, err)
		}
	}
	if flags != 3 {
		t.Errorf("%d flags in %q", flags, rest)
	}
}

// A waiting waiter costs no thread.
func TestManyProcessesFewThreads(t *testing.T) {
	const processes = 200
	threads := func() int {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(tasks)
	}
	before := threads()
	all := make([]*spawned, processes)
	for i := range all {
		all[i] = spawnTest(t, "/bin/cat")
	}
	if after := threads(); after > before+40 {
		t.Errorf("%d threads, %d before", after, before)
	}
	for _, s := range all {
		select {
		case <-s.exited:
			t.Fatal("a living process counts as exited")
		default:
		}
		_ = s.stdin.Close()
		s.end()
	}
}
