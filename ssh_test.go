//go:build linux

package acp_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sortie-ai/acp"
)

// sshd is an OpenSSH server of a test's own, on the loopback, with keys of its
// own, and what a client needs to reach it by the name target.
type sshd struct {
	t       *testing.T
	dir     string // keys, configurations, known hosts
	program string
	user    string
	port    int
	cmd     *exec.Cmd
}

// newSSHD starts a server, with lines added to its configuration. The test is
// skipped where there is no OpenSSH.
func newSSHD(t *testing.T, config ...string) *sshd {
	t.Helper()
	d := &sshd{t: t, dir: t.TempDir(), program: "/usr/sbin/sshd"}
	if _, err := os.Stat(d.program); err != nil {
		t.Skip("no OpenSSH server (openssh-server) on this machine")
	}
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip("no ssh (openssh-client) on this machine")
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	d.user = me.Username
	if me.Uid == "0" { // where it confines itself, as a start at boot makes it
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // #nosec G301 -- it insists
			t.Skip("sshd cannot run here: ", err)
		}
	}
	for _, key := range []string{"host", "host2", "user", "stranger"} {
		d.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", d.path(key))
	}
	d.copy("user.pub", "authorized")
	d.listen("host", config...)
	return d
}

func (d *sshd) path(name string) string { return filepath.Join(d.dir, name) }

func (d *sshd) write(name string, mode os.FileMode, text string) {
	d.t.Helper()
	if err := os.WriteFile(d.path(name), []byte(text), mode); err != nil {
		d.t.Fatal(err)
	}
}

func (d *sshd) copy(from, to string) {
	d.t.Helper()
	b, err := os.ReadFile(d.path(from))
	if err != nil {
		d.t.Fatal(err)
	}
	d.write(to, 0o600, string(b))
}

func (d *sshd) run(name string, args ...string) {
	d.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil { // #nosec G204 -- a test's own
		d.t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// listen starts the server with a host key, on a free port below those that the
// system deals out meanwhile, and returns when it listens. It ends with the test,
// and so do its sessions.
func (d *sshd) listen(hostKey string, config ...string) {
	d.t.Helper()
	for free := false; !free; {
		d.port = 20_000 + mathrand.IntN(10_000)
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(d.port)); err == nil {
			free = l.Close() == nil
		}
	}
	d.write("server", 0o600, fmt.Sprintf(`ListenAddress 127.0.0.1
Port %d
HostKey %s
AuthorizedKeysFile %s
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
%s
`, d.port, d.path(hostKey), d.path("authorized"), strings.Join(config, "\n")))
	d.client("user")
	d.cmd = exec.Command(d.program, "-D", "-e", "-f", d.path("server")) // #nosec G204 -- the system's sshd
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	lines := bufio.NewReader(stderr)
	for {
		line, err := lines.ReadString('\n')
		if strings.Contains(line, "Server listening") {
			break
		}
		if err != nil {
			d.t.Fatalf("sshd does not listen: %q, %v", line, d.cmd.Wait())
		}
	}
	drained := make(chan struct{})
	go func() { // ends with the server and its sessions, which hold the pipe
		defer close(drained)
		_, _ = io.Copy(d.t.Output(), lines)
	}()
	cmd := d.cmd
	d.t.Cleanup(func() {
		_ = syscall.Kill(cmd.Process.Pid, syscall.SIGSTOP) // it begins no session any more
		cutBelow(cmd.Process.Pid)
		_ = cmd.Process.Kill()
		<-drained
		_ = cmd.Wait()
	})
}

// client writes the configuration of ssh, with the key it offers.
func (d *sshd) client(key string) {
	d.t.Helper()
	d.write("client", 0o600, fmt.Sprintf(`Host target
HostName 127.0.0.1
HostKeyAlias target
Port %d
User %s
IdentityFile %s
IdentitiesOnly yes
IdentityAgent none
UserKnownHostsFile %s
GlobalKnownHostsFile none
`, d.port, d.user, d.path(key), d.path("known")))
}

// cut kills the server's side of every connection, not what runs behind it.
func (d *sshd) cut() { cutBelow(d.cmd.Process.Pid) }

func cutBelow(server int) {
	for _, pid := range descendants(server) {
		if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.HasPrefix(string(comm), "sshd") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// descendants lists the processes below pid.
func descendants(pid int) []int {
	below := map[int][]int{}
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		stat, err := os.ReadFile(name) // #nosec G304 -- of /proc
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		parent, _ := strconv.Atoi(fields[1])
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		below[parent] = append(below[parent], child)
	}
	all := slices.Clone(below[pid])
	for i := 0; i < len(all); i++ {
		all = append(all, below[all[i]]...)
	}
	return all
}

// remote makes a run of the fake runtime go over the server. Its mark travels,
// so that what stays on the far side is seen.
func (d *sshd) remote(f *fake) *fake {
	f.SSH = &acp.SSH{Host: "target", PassEnv: []string{"ACP_TEST_MARK", "FAKEAGENT_REPORT"}}
	f.Env = append(f.Env, sshConfig+"="+d.path("client"))
	return f
}

// shellWords quotes a list for the remote shell, where a test needs more of it
// than one program.
func shellWords(argv []string) string {
	var words []string
	for _, word := range argv {
		words = append(words, "'"+strings.ReplaceAll(word, "'", `'\''`)+"'")
	}
	return strings.Join(words, " ")
}

// argumentLists counts the processes that have text on their argument list.
func argumentLists(text string) int {
	n := 0
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte(text)) { // #nosec G304 -- of /proc
			n++
		}
	}
	return n
}

// TestSSHTurns has two turns behind each shell, in a workspace with an odd name,
// with a variable that nobody may see.
func TestSSHTurns(t *testing.T) {
	together(t)
	for _, shell := range []string{"", "dash", "bash", "busybox ash"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			var config []string
			if shell != "" {
				if _, err := exec.LookPath(strings.Fields(shell)[0]); err != nil {
					t.Skipf("no %s on this machine", shell)
				}
				config = []string{"ForceCommand exec " + shell + ` -c "$SSH_ORIGINAL_COMMAND"`}
			}
			d := newSSHD(t, config...)
			word := rand.Text() // on nobody else's argument list
			secret := word + " 'of\n\ttwo\\ lines\xff\n"
			f := d.remote(newFake(t, "-plain"))
			f.SSH.PassEnv = append(f.SSH.PassEnv, "PASSED_KEY", "PASSED_BLANK", "PASSED_UNSET")
			f.Env = append(f.Env, "NOT_PASSED=x", "PASSED_BLANK= ", "PASSED_KEY="+secret)
			f.MCPConfig = filepath.Join(d.dir, "none") // not read over SSH
			f.Workspace = filepath.Join(f.Workspace, "it's\n$(x) \xff")
			if err := os.Mkdir(f.Workspace, 0o700); err != nil {
				t.Fatal(err)
			}
			f.Command, f.Argv = "env -0 >environ; "+shellWords(f.Argv)+"; true", nil // true: the shell stays, with its arguments
			var log bytes.Buffer
			f.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))

			s := f.mustStart()
			if info := s.Info(); info.ToolServers || info.TokenCounts || !info.VersionKnown {
				t.Errorf("%+v", info)
			}
			for _, prompt := range []string{"hello", "permission please"} {
				res, err := s.RunTurn(context.Background(), prompt, nil)
				if err != nil || res.StopReason != "end_turn" {
					t.Errorf("%s: %+v, %v", prompt, res, err)
				}
			}
			if n := argumentLists(word); n != 0 {
				t.Errorf("the value is on %d argument lists", n)
			}
			if n := argumentLists("PASSED_KEY="); n < 2 { // or the check above sees nothing
				t.Errorf("the script is on %d argument lists, want both ends", n)
			}
			if err := s.Stop(context.Background()); err != nil {
				t.Error(err)
			}
			for what, text := range map[string]string{"log": log.String(), "transcript": f.wire.String()} {
				if strings.Contains(text, word) || !strings.Contains(text, s.ID()) {
					t.Errorf("%s: %s", what, text)
				}
			}
			b, err := os.ReadFile(filepath.Join(f.Workspace, "environ"))
			if err != nil {
				t.Fatal(err)
			}
			environ := strings.Split(string(b), "\x00")
			if !slices.Contains(environ, "PASSED_KEY="+secret) {
				t.Errorf("the variable did not arrive: %q", b)
			}
			for _, name := range []string{"NOT_PASSED", "PASSED_BLANK", "PASSED_UNSET"} {
				if strings.Contains(string(b), name) {
					t.Errorf("%s crossed", name)
				}
			}
		})
	}
}

// TestSSHStartFails has one row for each way in which a start over SSH fails.
func TestSSHStartFails(t *testing.T) {
	together(t)
	d := newSSHD(t)
	port := d.port
	const failed, early = "the SSH connection failed", "the agent runtime exited before responding: "
	for _, tc := range []struct {
		name  string
		setup func(f *fake)
		kind  acp.ErrorKind
		texts []string
	}{
		{"no such runtime", func(f *fake) { f.Argv = []string{"acp-no-such-runtime"} }, acp.ErrPortExit,
			[]string{early + "exit status 127", "acp-no-such-runtime"}},
		{"exit before initialize", func(f *fake) { f.Command, f.Argv = "echo no login >&2; exit 4", nil }, acp.ErrPortExit,
			[]string{early + "exit status 4: no login"}},
		{"a login script that reads", func(f *fake) {
			d.listen("host", `ForceCommand read line; eval "$SSH_ORIGINAL_COMMAND"`)
		}, acp.ErrPortExit, []string{early + "exit status 93", "acp: the passed variables arrived damaged; nothing was started"}},
		{"a connection refused", func(*fake) { d.port = 1; d.client("user") }, acp.ErrPortExit,
			[]string{failed, "Connection refused"}},
		{"a key refused", func(*fake) { d.client("stranger") }, acp.ErrPortExit, []string{failed, "Permission denied"}},
		{"an option as host", func(f *fake) { f.SSH.Host = "-oProxyCommand=x" }, acp.ErrAgentNotFound, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d.port = port
			d.client("user")
			f := d.remote(newFake(t))
			tc.setup(f)
			_, err := f.start()
			wantKind(t, err, tc.kind, tc.texts...)
		})
	}
}

// Without an ssh there is no start over it.
func TestSSHMissing(t *testing.T) {
	census(t)
	f := newFake(t)
	f.SSH = &acp.SSH{Host: "target"}
	t.Setenv("PATH", t.TempDir())
	_, err := f.start()
	wantKind(t, err, acp.ErrAgentNotFound, "ssh")
}

// TestSSHHostKeys has every mode meet a host that is new, known, and known by
// another key.
func TestSSHHostKeys(t *testing.T) {
	together(t)
	d := newSSHD(t)
	for _, tc := range []struct {
		mode, known string
		ok          bool
	}{
		{"", "", true}, {"", "host", true}, {"", "host2", false},
		{"accept-new", "", true}, {"accept-new", "host", true}, {"accept-new", "host2", false},
		{"yes", "", false}, {"yes", "host", true}, {"yes", "host2", false},
		{"no", "", true}, {"no", "host", true}, {"no", "host2", true},
	} {
		known := ""
		if tc.known != "" {
			b, err := os.ReadFile(d.path(tc.known + ".pub"))
			if err != nil {
				t.Fatal(err)
			}
			known = "target " + string(b)
		}
		d.write("known", 0o600, known)
		f := d.remote(newFake(t))
		f.SSH.StrictHostKeyChecking = tc.mode
		s, err := f.start()
		if !tc.ok {
			wantKind(t, err, acp.ErrPortExit, "the SSH connection failed", "Host key verification failed")
			continue
		}
		if err != nil {
			t.Errorf("%q, known %q: %v", tc.mode, tc.known, err)
			continue
		}
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// TestSSHLost has the connection end in the middle of a turn.
func TestSSHLost(t *testing.T) {
	together(t)
	for _, tc := range []struct {
		name, prompt, behind string
		cut                  bool
		text                 string
	}{
		{"the server killed", "slow", "", true, "the SSH connection failed"},
		{"exit 255 over there", "crash", "; exit 255", false, "the SSH connection failed"},
		{"exit 127", "crash", "; exit 127", false, "exit status 127"},
		{"exit of the runtime", "crash", "", false, "exit status 3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := newSSHD(t)
			f := d.remote(newFake(t, "-plain"))
			f.Command, f.Argv = shellWords(f.Argv)+tc.behind, nil
			s := f.mustStart()
			res, err := s.RunTurn(context.Background(), tc.prompt, func(e acp.Event) {
				if tc.cut && e.Text != "" {
					d.cut()
				}
			})
			wantKind(t, err, acp.ErrPortExit, tc.text)
			if res.ExitReason != acp.TurnFailed {
				t.Errorf("%+v", res)
			}
			<-s.Done()
		})
	}
}

// TestSSHStop has a runtime on the far side that ends for nothing. Here all is
// over within the grace; there it stays, since ssh without a terminal carries no
// signal: that is documented.
func TestSSHStop(t *testing.T) {
	together(t)
	d := newSSHD(t)
	f := d.remote(steps(t, `{"ignore":["SIGTERM","SIGHUP"]},{"answer_all":true},{"sleep_ms":600000}`))
	s, err := f.start()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.RunTurn(context.Background(), "hello", nil); err != nil {
		t.Error(err)
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if alive(s.PID()) {
		t.Error("the local ssh is left")
	}
	left := marked(f.mark)
	if len(left) == 0 {
		t.Error("nothing is left on the far side: the documentation says otherwise")
	}
	for _, process := range left {
		pid, err := strconv.Atoi(strings.Split(process, "/")[2])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
}

// TestSSHCommandLine has the same from the command line.
func TestSSHCommandLine(t *testing.T) {
	together(t)
	d := newSSHD(t)
	program := filepath.Join(t.TempDir(), "acp")
	d.run("go", "build", "-o", program, "./cmd/acp")
	runtime, err := fakeAgent()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		command []string
		status  int
		want    string
	}{
		{[]string{"sh", "-c", `test "$PASSED_WORD" = magic && exec "$0"`, runtime}, 0, `"exit_reason":"turn_completed"`},
		{[]string{"acp-no-such-runtime"}, 1, "exit status 127"},
	} {
		args := append([]string{"run", "-json", "-cwd", t.TempDir(), "-ssh", "target", "-ssh-strict", "accept-new",
			"-ssh-pass-env", "PASSED_WORD", "hello", "--"}, tc.command...)
		cmd := exec.Command(program, args...) // #nosec G204 -- our own program
		cmd.Env = append(os.Environ(), sshConfig+"="+d.path("client"), "PASSED_WORD=magic")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		_ = cmd.Run() // the status is looked at below
		if cmd.ProcessState.ExitCode() != tc.status || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%q: status %d, %s%s", tc.command, cmd.ProcessState.ExitCode(), &out, &errs)
		}
	}
}
