package acp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"
)

const windowsHelper = "ACP_TEST_WINDOWS_HELPER"

// TestWindowsHelper is no test: it is the process that the tests below start.
func TestWindowsHelper(t *testing.T) {
	child := func(mode string) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWindowsHelper$") // #nosec G204 G702 -- this test binary
		cmd.Env = append(os.Environ(), windowsHelper+"="+mode)
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			os.Exit(9)
		}
	}
	switch mode := os.Getenv(windowsHelper); mode {
	case "":
		t.Skip("not a helper")
	case "cat":
		_, _ = io.Copy(os.Stdout, os.Stdin)
		_, _ = os.Stderr.WriteString("error")
		os.Exit(3)
	case "tree", "orphan": // a child that is alone with the grandchild, or a leader that leaves it
		child("sleep")
		if mode == "tree" {
			time.Sleep(time.Hour)
		}
		os.Exit(0)
	case "sleep":
		_, _ = os.Stdout.WriteString(strconv.Itoa(os.Getpid()) + "\n")
		time.Sleep(time.Hour)
	case "break":
		got := make(chan os.Signal, 1)
		signal.Notify(got, os.Interrupt)
		_, _ = os.Stdout.WriteString("ready\n")
		<-got
		os.Exit(4)
	}
}

// tempDir is removed by TestMain. Wine 8 cannot remove files as Go does, which
// t.TempDir would report.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "windows-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func helperCommand(t *testing.T, mode string) (argv, env []string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, "-test.run=^TestWindowsHelper$"}, append(os.Environ(), windowsHelper+"="+mode)
}

func spawnHelper(t *testing.T, mode string) *process {
	t.Helper()
	argv, env := helperCommand(t, mode)
	p, err := spawn(t.Context(), argv, tempDir(t), env, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// finish waits for the exit, has the process reaped and closes the pipes.
func finish(p *process) exitStatus {
	<-p.exited
	close(p.mayReap)
	status := <-p.reaped
	_, _, _ = p.stdin.Close(), p.stdout.Close(), p.stderr.Close()
	return status
}

// openPid holds a process, so that its number stays its own.
func openPid(t *testing.T, pid int) windows.Handle {
	t.Helper()
	h, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(pid)) // #nosec G115 -- a process number
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = windows.CloseHandle(h) })
	return h
}

// mustEnd waits for a process that is being ended.
func mustEnd(t *testing.T, h windows.Handle) {
	t.Helper()
	if event, err := windows.WaitForSingleObject(h, 30_000); event != windows.WAIT_OBJECT_0 {
		t.Fatalf("the process lives: %v, %v", event, err)
	}
}

// grandchild reads the number that "sleep" prints.
func grandchild(t *testing.T, out io.Reader) windows.Handle {
	t.Helper()
	line, err := bufio.NewReader(out).ReadString('\n')
	pid, err2 := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || err2 != nil {
		t.Fatalf("got %q, %v, %v", line, err, err2)
	}
	return openPid(t, pid)
}

func TestWindowsPipesAndStatus(t *testing.T) {
	p := spawnHelper(t, "cat")
	if _, err := io.WriteString(p.stdin, "input"); err != nil {
		t.Error(err)
	}
	_ = p.stdin.Close()
	for want, r := range map[string]io.Reader{"input": p.stdout, "error": p.stderr} {
		if got, err := io.ReadAll(r); err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	if got := finish(p); got != (exitStatus{"exit status 3", 3}) {
		t.Error(got)
	}
}

func TestWindowsExitIsObservedBeforeTheReap(t *testing.T) {
	p := spawnHelper(t, "cat")
	_ = p.stdin.Close()
	<-p.exited
	select {
	case status := <-p.reaped:
		t.Errorf("reaped: %v", status)
	default:
	}
	mustEnd(t, openPid(t, p.pid)) // the number is still its own
	if err := p.signal(true); err != nil {
		t.Errorf("nobody left to kill: %v", err)
	}
	finish(p)
}

func TestWindowsKillReachesTheTree(t *testing.T) {
	p := spawnHelper(t, "tree")
	h := grandchild(t, p.stdout)
	select {
	case <-p.exited:
		t.Error("a living process counts as exited")
	default:
	}
	if err := p.signal(true); err != nil {
		t.Error(err)
	}
	mustEnd(t, h)
	if got := finish(p); got != (exitStatus{"exit status 1", 1}) {
		t.Error(got)
	}
}

// A descendant that outlives its leader goes at the kill, or with the job.
func TestWindowsOrphanGoes(t *testing.T) {
	for _, kill := range []bool{true, false} {
		p := spawnHelper(t, "orphan")
		h := grandchild(t, p.stdout)
		<-p.exited
		if kill {
			if err := p.signal(true); err != nil {
				t.Error(err)
			}
			mustEnd(t, h)
		}
		if got := finish(p); got.code != 0 {
			t.Error(got)
		}
		mustEnd(t, h)
	}
}

// startHelper calls startSuspended with pipes that the caller need not close.
func startHelper(t *testing.T, ctx context.Context, mode string, log *bytes.Buffer,
	assign func(*os.Process) (windows.Handle, error), resume func(uint32) error) (*group, *os.File, *Error) {
	t.Helper()
	argv, env := helperCommand(t, mode)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	cmd := exec.Command(argv[0], argv[1:]...) // #nosec G204 -- this test binary
	cmd.Env, cmd.Stdout = env, w
	g, failure := startSuspended(ctx, cmd, slog.New(slog.NewTextHandler(log, nil)), assign, resume)
	_ = w.Close()
	return g, r, failure
}

func TestWindowsSuspendedUntilResume(t *testing.T) {
	var log bytes.Buffer
	var before uint32
	g, out, failure := startHelper(t, t.Context(), "cat", &log, newJob, func(pid uint32) error {
		id, err := mainThread(pid)
		if err != nil {
			return err
		}
		thread, err := windows.OpenThread(windows.THREAD_SUSPEND_RESUME, false, id)
		if err != nil {
			return err
		}
		defer func() { _ = windows.CloseHandle(thread) }()
		before, err = windows.ResumeThread(thread)
		return err
	})
	if failure != nil {
		t.Fatal(failure)
	}
	if before != 1 {
		t.Errorf("the main thread was suspended %d times before the resume", before)
	}
	if _, err := io.ReadAll(out); err != nil {
		t.Error(err)
	}
	g.await()
	if got := g.reap(false); got.code != 3 {
		t.Error(got)
	}
	if log.Len() != 0 {
		t.Error(log.String())
	}
}

func TestWindowsAssignmentFailed(t *testing.T) {
	var log bytes.Buffer
	broken := errors.New("broken job")
	g, out, failure := startHelper(t, t.Context(), "sleep", &log,
		func(*os.Process) (windows.Handle, error) { return 0, broken }, resumeProcess)
	if failure != nil {
		t.Fatal(failure)
	}
	want := `level=WARN msg="process group assignment failed" pid=` + strconv.Itoa(g.leader.Pid) + ` error="broken job"`
	if !strings.Contains(log.String(), want) {
		t.Errorf("log is %s, want %s", &log, want)
	}
	h := grandchild(t, out) // it runs
	for range 2 {           // the second finds nobody
		if err := g.signal(true); err != nil {
			t.Error(err)
		}
		mustEnd(t, h)
	}
	g.await()
	if got := g.reap(false); got.code != 1 {
		t.Error(got)
	}
}

// What happens before the resume ends the process before it ran.
func TestWindowsStartThatDoesNotResume(t *testing.T) {
	broken := errors.New("broken resume")
	cause := errors.New("the caller's cause")
	for _, tt := range []struct {
		name      string
		cancelled bool
		noJob     bool
		kind      ErrorKind
		cause     error
		log       string
	}{
		{name: "resume failed", kind: ErrPortExit, cause: broken, log: `level=WARN msg="process resume failed"`},
		{name: "context done", cancelled: true, kind: ErrTurnCancelled, cause: cause},
		{name: "context done, no job", cancelled: true, noJob: true, kind: ErrTurnCancelled, cause: cause, log: "assignment"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			var log bytes.Buffer
			var h windows.Handle
			resumed := false
			g, out, failure := startHelper(t, ctx, "sleep", &log, func(p *os.Process) (windows.Handle, error) {
				h = openPid(t, p.Pid)
				if tt.cancelled {
					cancel(cause)
				}
				if tt.noJob {
					return 0, errors.New("broken job")
				}
				return newJob(p)
			}, func(uint32) error {
				resumed = true
				return broken
			})
			if g != nil || failure == nil || failure.Kind != tt.kind || !errors.Is(failure, tt.cause) {
				t.Fatalf("got %v, %v; want %s by %v", g, failure, tt.kind, tt.cause)
			}
			if resumed == tt.cancelled {
				t.Errorf("resume was called: %v", resumed)
			}
			mustEnd(t, h)
			if got, err := io.ReadAll(out); len(got) != 0 {
				t.Errorf("it ran: %q, %v", got, err)
			}
			if tt.log == "" && log.Len() != 0 || !strings.Contains(log.String(), tt.log) || tt.cancelled && strings.Contains(log.String(), "resume") {
				t.Errorf("log is %q, want %q", log.String(), tt.log)
			}
		})
	}
}

func TestWindowsBatchFile(t *testing.T) {
	dir := tempDir(t)
	for name, text := range map[string]string{"tool.cmd": "@echo cmd %*\r\n", "tool2.BAT": "@echo bat %*\r\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+";"+os.Getenv("PATH"))
	t.Setenv("PATHEXT", ".EXE;.CMD;.BAT")
	for name, want := range map[string]string{"tool": `cmd one "two words"`, "tool2": `bat one "two words"`} {
		path, err := resolve(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := spawn(t.Context(), []string{path, "one", "two words"}, dir, os.Environ(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		_ = p.stdin.Close()
		if got, err := io.ReadAll(p.stdout); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
		if got := finish(p); got.code != 0 {
			t.Error(got)
		}
		for _, arg := range []string{`a"b`, "%PATH%", "a!b", "a^b", "a&calc", "a|b", "a<b", "a>b", "a\nb", "a\rb"} {
			for _, file := range []string{path, path + ".", path + ". "} {
				_, err := spawn(t.Context(), []string{file, "fine", arg}, dir, os.Environ(), slog.New(slog.DiscardHandler))
				if err == nil || err.Kind != ErrAgentNotFound || !strings.Contains(err.Error(), strconv.Quote(arg)) {
					t.Errorf("%q with %q: %v", file, arg, err)
				}
			}
		}
	}
	if err := checkArgv([]string{`C:\tool.exe`, `a"b&c%d`}); err != nil {
		t.Errorf("a program of its own is given anything: %v", err)
	}
}

func TestWindowsFailedStart(t *testing.T) {
	dir := tempDir(t)
	text := filepath.Join(dir, "text.exe")
	if err := os.WriteFile(text, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	self, _ := helperCommand(t, "")
	for name, argv := range map[string][]string{
		"missing":    {filepath.Join(dir, "none.exe")},
		"directory":  {dir},
		"no program": {text},
		"NUL":        {self[0], "a\x00b"},
	} {
		if _, err := spawn(t.Context(), argv, dir, os.Environ(), slog.New(slog.DiscardHandler)); err == nil || err.Kind != ErrPortExit {
			t.Errorf("%s: %.200v, want port_exit", name, err)
		}
	}
}

// handles tells how many handles this process has open, but for a constant: new
// ones take the lowest free places. (Wine 8 does not count them.)
func handles(t *testing.T) uintptr {
	t.Helper()
	highest := windows.Handle(0)
	for range 200 {
		h, err := windows.CreateEvent(nil, 0, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = windows.CloseHandle(h) }()
		highest = max(highest, h)
	}
	return uintptr(highest) / 4
}

func TestWindowsHandlesGo(t *testing.T) {
	const rounds = 10
	dir := tempDir(t)
	for name, round := range map[string]func(){
		"start": func() {
			p := spawnHelper(t, "cat")
			_ = p.stdin.Close()
			finish(p)
		},
		"failed start": func() {
			if _, err := spawn(t.Context(), []string{dir}, dir, nil, slog.New(slog.DiscardHandler)); err == nil {
				t.Error("a directory was started")
			}
		},
		"failed resume": func() {
			var log bytes.Buffer
			_, out, err := startHelper(t, t.Context(), "sleep", &log, newJob, func(uint32) error { return errors.New("broken") })
			if err == nil {
				t.Error("a broken resume started")
			}
			_ = out.Close()
		},
	} {
		round() // what the first opens for good
		before := handles(t)
		for range rounds {
			round()
		}
		// The runtime's own threads come and go with a few handles each.
		if after := handles(t); after >= before+rounds {
			t.Errorf("%s: %d handles, %d before", name, after, before)
		}
	}
}

func TestWindowsBreakReachesTheGroup(t *testing.T) {
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil {
		t.Skip("CTRL_BREAK_EVENT does not work under Wine")
	}
	p := spawnHelper(t, "break")
	if line, err := bufio.NewReader(p.stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	if err := p.signal(false); err != nil {
		t.Error(err)
	}
	if got := finish(p); got.code != 4 {
		t.Error(got)
	}
}
