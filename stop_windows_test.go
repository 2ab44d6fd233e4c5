package acp

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"
)

const windowsHolder = "ACP_TEST_WINDOWS_HOLDER"

// TestWindowsHolder is no test: it is a runtime and its child, which hold all
// three pipes and read nothing.
func TestWindowsHolder(t *testing.T) {
	switch os.Getenv(windowsHolder) {
	case "":
		t.Skip("not a helper")
	case "leader":
		cmd := exec.Command(os.Args[0], "-test.run=^TestWindowsHolder$") // #nosec G204 G702 -- this test binary
		cmd.Env = append(os.Environ(), windowsHolder+"=child")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			os.Exit(9)
		}
		_, _ = os.Stdout.WriteString(strconv.Itoa(cmd.Process.Pid) + "\n")
	}
	time.Sleep(time.Minute)
}

// TestWindowsStopWhileBlocked: reader, tail and writer are all inside a call of
// the system when the session is stopped, with a job that ends whoever holds the
// pipes and without one.
func TestWindowsStopWhileBlocked(t *testing.T) {
	for _, job := range []bool{true, false} {
		t.Run("job "+strconv.FormatBool(job), func(t *testing.T) {
			p, child := spawnHolder(t, job)
			c := &launch{maxLine: 1 << 20, readTimeout: time.Minute, grace: time.Second,
				redact: func(s string) string { return s }, log: slog.New(slog.DiscardHandler)}
			s := (&Adapter{}).attach(c, &meter{}, p)
			full := make(chan struct{})
			s.do(func(l *loop) {
				l.enqueue(outgo{line: make([]byte, 4<<20)})
				close(full)
			})
			<-full
			s.do(func(*loop) {}) // a step later, the writer has it
			stopped := make(chan error)
			go func() { stopped <- s.Stop(context.Background()) }()
			select {
			case err := <-stopped:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(30 * time.Second):
				t.Error("Stop hangs")
				_ = windows.TerminateProcess(child, 1)
				<-stopped
			}
			if job {
				mustEnd(t, child)
			} else if err := windows.TerminateProcess(child, 1); err != nil {
				t.Error(err)
			}
		})
	}
}

// spawnHolder is spawn, with or without a job, and a handle of the child.
func spawnHolder(t *testing.T, job bool) (*process, windows.Handle) {
	t.Helper()
	ours, theirs, err := openPipes()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(theirs)
	cmd := exec.Command(os.Args[0], "-test.run=^TestWindowsHolder$") // #nosec G204 G702 -- this test binary
	cmd.Env = append(os.Environ(), windowsHolder+"=leader")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	assign := newJob
	if !job {
		assign = func(*os.Process) (windows.Handle, error) { return 0, os.ErrInvalid }
	}
	g, failure := startSuspended(t.Context(), cmd, slog.New(slog.DiscardHandler), assign, resumeProcess)
	if failure != nil {
		closeAll(ours)
		t.Fatal(failure)
	}
	line := make([]byte, 32)
	n, err := ours[1].Read(line)
	pid, err2 := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	child, err := windows.OpenProcess(windows.SYNCHRONIZE|windows.PROCESS_TERMINATE, false, uint32(pid)) // #nosec G115 -- a process number
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = windows.CloseHandle(child) })
	p := &process{pid: g.leader.Pid, stdin: ours[0], stdout: ours[1], stderr: ours[2], signal: g.signal}
	p.exited, p.mayReap, p.reaped = wait(g)
	return p, child
}
