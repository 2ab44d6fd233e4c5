//go:build unix

package script_test

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestTermHandler(t *testing.T) {
	name := filepath.Join(t.TempDir(), "marker")
	// The end of input comes with the signal and must not cut the handler short.
	cmd, in, out := process(t, "-scenario", scenario(t,
		`{"on_term_ms":50,"path":"`+name+`","status":6},{"send":"x"},{"wait_stdin_eof":true}`))
	talk(t, in, out, "<x")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	talk(t, in, out, ".")
	_ = cmd.Wait()
	if _, err := os.Stat(name); err != nil || cmd.ProcessState.ExitCode() != 6 {
		t.Errorf("%v, marker: %v", cmd.ProcessState, err)
	}
}

// Standard output that nobody reads any more is a client that is gone, not the
// end of the process by SIGPIPE.
func TestClientGone(t *testing.T) {
	cmd, in, out := process(t, "-scenario", scenario(t, `{"send":"x"},{"expect":"a"},{"send":"y"}`))
	talk(t, in, out, "<x")
	if err := out.(io.Closer).Close(); err != nil {
		t.Fatal(err)
	}
	talk(t, in, out, `>{"method":"a"}`)
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 8 {
		t.Errorf("%v, want status 8", cmd.ProcessState)
	}
}

func TestIgnoreAndStop(t *testing.T) {
	cmd, in, out := process(t, "-scenario", scenario(t,
		`{"ignore":["SIGTERM","SIGHUP","SIGINT","SIGQUIT"]},{"send":"x"},{"expect":"a"},{"stop_self":true},{"exit":5}`))
	talk(t, in, out, "<x")
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	talk(t, in, out, `>{"method":"a"}`)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("status %v, %v: want it stopped", status, err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 5 {
		t.Errorf("status %d, want 5", got)
	}
}

// A holder keeps standard output open after the runtime's exit, in its group or
// out of it.
func TestHolder(t *testing.T) {
	for _, escape := range []string{"", `,"escape":true`} {
		report := filepath.Join(t.TempDir(), "report")
		t.Setenv("FAKEAGENT_REPORT", report)
		_, _, out := process(t, "-scenario", scenario(t, `{"spawn_holder":60`+escape+`},{"send":"x"},{"exit":0}`))
		talk(t, nil, out, "<x")
		pid := holderPID(t, report)
		group, err := syscall.Getpgid(pid)
		if own := group == pid; err != nil || own != (escape != "") {
			t.Errorf("holder %d is of group %d, %v", pid, group, err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = bufio.NewReader(out).ReadByte()
		}()
		select {
		case <-ended:
			t.Error("standard output ended while the holder lives")
		default:
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		<-ended
	}
}

func holderPID(t *testing.T, report string) int {
	t.Helper()
	b, err := os.ReadFile(report) // #nosec G304 -- ours
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "holder-pid: ")
	pid := 0
	for _, c := range strings.Split(rest, "\n")[0] {
		pid = pid*10 + int(c-'0')
	}
	if pid < 2 {
		t.Fatalf("no holder in %q", b)
	}
	return pid
}
