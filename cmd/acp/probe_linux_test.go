package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProbeLeavings: a runtime with a worker in its group, one in a session of
// its own, and a deaf ear for SIGTERM and for the end of input.
func TestProbeLeavings(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip(err)
	}
	steps := handshake(t, `{}`, `{"stop_reading": true}`, `{"sleep_ms": 600000}`)
	stubborn := play(t, append([]string{`{"ignore": ["SIGTERM"]}`}, steps...))
	script := `trap '' TERM; sleep 601 <&- >&- 2>&- & setsid sleep 602 <&- >&- 2>&- & exec "$@"`
	command := append([]string{"--", "sh", "-c", script, "sh"}, stubborn[1:]...)
	r := probed(t, 0, probeArgs(command, "-stop-grace", "500ms"))
	want := map[string]struct {
		exit string
		left int
	}{
		endOfInput: {"still running", 3},
		sigterm:    {"still running", 3},
		kill:       {"signal: killed", 1},
		killFirst:  {"signal: killed", 2},
	}
	for _, e := range r.Endings {
		if w := want[e.How]; e.Exit != w.exit || len(e.Left) != w.left {
			t.Errorf("%+v, want %+v", e, w)
		}
		for _, l := range e.Left {
			if err := syscall.Kill(l.PID, 0); err != syscall.ESRCH && alive(l.PID) {
				t.Errorf("%+v was not ended", l)
			}
		}
	}
}

// alive reports whether a process is there and no zombie.
func alive(pid int) bool {
	_, ok := nameOf(pid)
	return ok
}

// openTerminal returns both ends of a new pseudo terminal of that size.
func openTerminal(t *testing.T, cols, rows uint16) (control, terminal *os.File) {
	t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = control.Close() })
	fd := int(control.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows}); err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return control, terminal
}

// onTerminal runs the command on a terminal and returns all that it wrote.
func onTerminal(t *testing.T, cols, rows uint16, env []string, args ...string) (string, int) {
	t.Helper()
	control, terminal := openTerminal(t, cols, rows)
	cmd := acpCommand(t, args...)
	cmd.Env = append(append(cmd.Env, "TERM=xterm", "NO_COLOR="), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close()
	var shown bytes.Buffer
	_, _ = io.Copy(&shown, control) // ends with EIO when the command has gone
	_ = cmd.Wait()
	return shown.String(), cmd.ProcessState.ExitCode()
}

func TestTerminalView(t *testing.T) {
	t.Parallel()
	steps := []string{prompted, chunk("Hello, "), chunk("world"),
		update(`"sessionUpdate":"tool_call","toolCallId":"t1","kind":"execute","title":"ls"`),
		update(`"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"completed","title":"ls"`),
		chunk("Bye"), `{"sleep_ms": 300}`, endTurn, atEOF}
	for _, c := range []struct {
		name       string
		cols, rows uint16
		env        []string
		status     bool
		colour     bool
	}{
		{"usual", 80, 24, nil, true, true},
		{"no colour", 80, 24, []string{"NO_COLOR=1"}, true, false},
		{"narrow", 20, 5, nil, true, true},
		{"no room", 80, 1, nil, false, true},
		{"size unknown", 0, 0, nil, true, true},
		{"dumb", 80, 24, []string{"TERM=dumb"}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, status := onTerminal(t, c.cols, c.rows, c.env, with([]string{"run", "hi"}, scenario(t, steps...))...)
			if status != 0 {
				t.Fatalf("status %d: %q", status, got)
			}
			if strings.Contains(got, "\x1b7") != c.status || strings.Contains(got, "\x1b[32m") != c.colour {
				t.Errorf("%q", got)
			}
			if c.name == "dumb" {
				return
			}
			g := newGrid(t, int(max(c.cols, 80)), 40)
			if c.cols > 0 {
				g = newGrid(t, int(c.cols), int(c.rows))
			}
			_, _ = io.WriteString(g, strings.ReplaceAll(got, "\r\r\n", "\r\n"))
			flat := strings.NewReplacer("\n", "", " ", "").Replace(g.text())
			for _, want := range []string{"Hello,world*execute:ls(", "Bye" + "turn1completed("} {
				if !strings.Contains(flat, want) {
					t.Errorf("no %q in\n%s", want, g.text())
				}
			}
			if strings.Contains(flat, "Ctrl-C") {
				t.Errorf("the status line is left:\n%s", g.text())
			}
		})
	}
	t.Run("no prompt", func(t *testing.T) {
		t.Parallel()
		got, status := onTerminal(t, 80, 24, nil, "run")
		if status != 2 || !strings.Contains(got, "acp run: no prompt: give one") {
			t.Errorf("status %d: %q", status, got)
		}
	})
}

// TestProbeLongLine: of a line above the bound only that much is kept, and the
// answer behind it is seen.
func TestProbeLongLine(t *testing.T) {
	t.Parallel()
	s := &subject{answer: make(chan int, 2), read: make(chan struct{})}
	long := io.LimitReader(zeros{}, 256<<20)
	before := new(runtime.MemStats)
	runtime.ReadMemStats(before)
	s.readAll(io.MultiReader(strings.NewReader(`{"id":1,"result":"`), long, strings.NewReader("\"}\n"+`{"id":2}`)))
	after := new(runtime.MemStats)
	if runtime.ReadMemStats(after); after.TotalAlloc-before.TotalAlloc > 128<<20 {
		t.Errorf("%d MiB were allocated", (after.TotalAlloc-before.TotalAlloc)>>20)
	}
	if id := <-s.answer; id != 2 || len(s.answer) > 0 {
		t.Errorf("the answer to %d", id)
	}
}

// zeros is an endless text.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}
