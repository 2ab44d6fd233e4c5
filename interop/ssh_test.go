package interop

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sortie-ai/acp"
	"github.com/sortie-ai/acp/interop/model"
)

const sshdSubject = "sshd"

// sshServer starts an OpenSSH server of the test's own, on the loopback, with
// keys of its own, and puts an ssh first in PATH that reaches it as target. It
// ends with the test. Without OpenSSH the test is skipped.
func sshServer(t *testing.T) {
	t.Helper()
	const program = "/usr/sbin/sshd"
	if _, err := os.Stat(program); err != nil {
		table.skip(t, "no OpenSSH server (openssh-server) on this machine")
	}
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		table.skip(t, "no ssh (openssh-client) on this machine")
	}
	dir := t.TempDir()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, format string, args ...any) {
		must(os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, format, args...), 0o700))
	}
	me, err := user.Current()
	must(err)
	if me.Uid == "0" { // where it confines itself, as a start at boot makes it
		must(os.MkdirAll("/run/sshd", 0o755))
	}
	for _, key := range []string{"host", "user"} {
		must(exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key)).Run())
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	port := free.Addr().(*net.TCPAddr).Port
	must(free.Close())
	write("server", `ListenAddress 127.0.0.1
Port %d
HostKey %[2]s/host
AuthorizedKeysFile %[2]s/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
`, port, dir)
	write("client", `Host target
HostName 127.0.0.1
Port %d
User %s
IdentityFile %[3]s/user
IdentitiesOnly yes
IdentityAgent none
UserKnownHostsFile %[3]s/known
GlobalKnownHostsFile none
`, port, me.Username, dir)
	write("ssh", "#!/bin/sh\nexec %s -F %s/client \"$@\"\n", ssh, dir)
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))

	server := exec.Command(program, "-D", "-e", "-f", filepath.Join(dir, "server"))
	stderr, err := server.StderrPipe()
	must(err)
	must(server.Start())
	lines := bufio.NewReader(stderr)
	for line := ""; !strings.Contains(line, "Server listening"); {
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatalf("sshd does not listen: %q, %v", line, server.Wait())
		}
	}
	drained := make(chan struct{})
	go func() { // ends with the server and its sessions, which hold the pipe
		defer close(drained)
		_, _ = io.Copy(t.Output(), lines)
	}()
	t.Cleanup(func() {
		_ = server.Process.Kill()
		<-drained
		_ = server.Wait()
	})
}

// TestSSH has Gemini CLI on the far side of a real server. It gets all of its
// environment as passed variables.
func TestSSH(t *testing.T) {
	sshServer(t)
	gemini := Runtimes()[0]
	start := func(b *bench) *run {
		return b.start(b.rt.Asks, func(c *acp.Config) {
			c.SSH = &acp.SSH{Host: "target"}
			for _, e := range c.Env {
				name, _, _ := strings.Cut(e, "=")
				c.SSH.PassEnv = append(c.SSH.PassEnv, name)
			}
		})
	}
	t.Run("turns", func(t *testing.T) {
		defer table.time(sshdSubject, "gemini turns", t)()
		b := newBench(t, gemini)
		r := start(b)
		if info := r.Info(); info.AgentName != gemini.Facts.Agent || info.TokenCounts || info.ToolServers {
			t.Errorf("%+v", info)
		}
		r.done("[[text]] remember the word walrus-7")
		tn := r.done("[[text]] and now another thing")
		if tn.text != model.Greeting || tn.Measured || !tn.Unaccounted {
			t.Errorf("%q, measured %v", tn.text, tn.Measured)
		}
		if !strings.Contains(b.lastAsked().Body, "walrus-7") {
			t.Error("the second turn's request does not hold the first turn")
		}
		if len(b.left()) < 3 {
			t.Errorf("the mark is not on both sides: %v", b.left())
		}
		r.stop(nil, nil)
	})
	// No signal crosses without a terminal, and Gemini CLI heeds the end of its
	// input only behind its turn.
	t.Run("busy", func(t *testing.T) {
		defer table.time(sshdSubject, "gemini stop in mid turn", t)()
		b := newBench(t, gemini)
		r := start(b)
		begun, over := make(chan struct{}, 1), make(chan turn, 1)
		go func() { // ends with the session
			over <- r.turn(b.ctx, "[[slow]] please", func(e acp.Event) {
				if e.Text != "" {
					select {
					case begun <- struct{}{}:
					default:
					}
				}
			})
		}()
		select {
		case <-begun:
		case tn := <-over:
			t.Fatalf("the turn ended %s, %v", tn.ExitReason, tn.err)
		}
		r.stop([]string{"gemini"}, nil)
		if tn := <-over; tn.ExitReason != acp.TurnCancelled {
			t.Errorf("the turn ended %s, %v", tn.ExitReason, tn.err)
		}
	})
}
