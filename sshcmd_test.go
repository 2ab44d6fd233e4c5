package acp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var sshOptions = []string{
	"-o", "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30",
	"-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3", "--",
}

func TestSSHCommand(t *testing.T) {
	for _, tc := range []struct {
		name, workspace, command string
		argv                     []string
		script                   string
	}{
		{"a string as it stands", "/w", `A=1 run  "$HOME" | tee`, nil, "cd -- '/w' && { A=1 run  \"$HOME\" | tee\n}"},
		{"a comment at its end", "/w", `run # now`, nil, "cd -- '/w' && { run # now\n}"},
		{"a list word by word", "/w", "ignored", []string{"my run", "-a", "", "it's", "$x"}, `cd -- '/w' && { 'my run' '-a' '' 'it'\''s' '$x'` + "\n}"},
		{"workspace", "/it's\n \xff$(x)", "run", nil, "cd -- '/it'\\''s\n \xff$(x)' && { run\n}"},
		{"workspace with a dash", "-w", "run", nil, "cd -- '-w' && { run\n}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args, preamble, e := sshCommand(&SSH{Host: "user@host"}, tc.workspace, tc.command, tc.argv, []string{"SECRET=x"})
			if e != nil {
				t.Fatal(e)
			}
			if want := append(slices.Clone(sshOptions), "user@host", tc.script); !slices.Equal(args, want) {
				t.Errorf("%q, want %q", args, want)
			}
			if preamble != nil {
				t.Errorf("a preamble where nothing is passed: %q", preamble)
			}
		})
	}
}

func TestSSHHostKeyChecking(t *testing.T) {
	for mode, want := range map[string]string{
		"": "accept-new", "accept-new": "accept-new", "yes": "yes", "no": "no",
		"off": "", "ask": "", "YES": "", "no ": "", "no -oProxyCommand=x": "",
	} {
		args, _, e := sshCommand(&SSH{Host: "h", StrictHostKeyChecking: mode}, "/w", "run", nil, nil)
		switch {
		case want == "" && (e == nil || e.Kind != ErrAgentNotFound):
			t.Errorf("%q: %v, want agent_not_found", mode, e)
		case want != "" && (e != nil || args[1] != "StrictHostKeyChecking="+want):
			t.Errorf("%q: %q, %v", mode, args, e)
		}
	}
}

func TestSSHHost(t *testing.T) {
	for _, host := range []string{"h", "h.example", "user@h", `DOMAIN\user@h`, "user@corp@h", "127.0.0.1", "::1", "fe80::1%eth0", "ssh://user@h:2222", "bücher.example", "a-b", "u-@h"} {
		args, _, e := sshCommand(&SSH{Host: host}, "/w", "run", nil, nil)
		if e != nil || args[len(sshOptions)-1] != "--" || args[len(sshOptions)] != host {
			t.Errorf("%q: %q, %v", host, args, e)
		}
	}
	for _, host := range []string{
		"", "-oProxyCommand=x", "-", "a b", "a\tb", "a\nb", "h\n", " h", "a\u00a0b", "a\x00b", "a\x7fb", "a\u0085b",
		"$(x)", "`x`", "a;b", "a|b", "a&b", "a<b", `a"b`, "a'b", `a\b`, "u$(x)@h",
		"user@-x", "user@-oProxyCommand=x", "a@b@-x", "user@", "ssh://-x", "ssh://u@-x", "-u@h", "ssh://", "ssh://-u@h",
	} {
		if _, _, e := sshCommand(&SSH{Host: host}, "/w", "run", nil, nil); e == nil || e.Kind != ErrAgentNotFound {
			t.Errorf("%q: %v, want agent_not_found", host, e)
		}
	}
}

func TestSSHPassEnv(t *testing.T) {
	env := []string{"A=first", "A=last", "B=", "C= \t\n", "D=d=d", "AA=no", "a=lower", "_E1=e"}
	for _, tc := range []struct {
		list []string
		want []string // the values
	}{
		{nil, nil},
		{[]string{"UNSET", "B", "C"}, nil},
		{[]string{"A"}, []string{"last"}},
		{[]string{"_E1", "D", "B", "A", "D"}, []string{"e", "d=d", "last"}},
	} {
		args, preamble, e := sshCommand(&SSH{Host: "h", PassEnv: tc.list}, "/w", "run", nil, env)
		if e != nil {
			t.Fatal(e)
		}
		if tc.want == nil {
			if preamble != nil || args[len(args)-1] != "cd -- '/w' && { run\n}" {
				t.Errorf("%q: %q, %q", tc.list, args, preamble)
			}
			continue
		}
		if want := encodePreamble(tc.want); !bytes.Equal(preamble, want) {
			t.Errorf("%q: %q, want %q", tc.list, preamble, want)
		}
		if !strings.HasSuffix(args[len(args)-1], "\ncd -- '/w' && { run\n}") {
			t.Errorf("the command's form changed: %q", args[len(args)-1])
		}
		for _, v := range tc.want {
			if len(v) > 1 && strings.Contains(strings.Join(args, " "), v) {
				t.Errorf("%q is on the argument list", v)
			}
		}
	}
	for _, name := range []string{"", "1A", "A-B", "A B", "A=B", "Ä", "A\n", "$(x)", "A;x"} {
		if _, _, e := sshCommand(&SSH{Host: "h", PassEnv: []string{name}}, "/w", "run", nil, nil); e == nil || e.Kind != ErrAgentNotFound {
			t.Errorf("%q: %v, want agent_not_found", name, e)
		}
	}
}

func TestSSHNoNUL(t *testing.T) {
	for _, tc := range []struct {
		workspace, command string
		argv, env          []string
	}{
		{"/w\x00", "run", nil, nil},
		{"/w", "run\x00", nil, nil},
		{"/w", "", []string{"run", "\x00"}, nil},
		{"/w", "run", nil, []string{"A=secret\x00"}},
	} {
		_, _, e := sshCommand(&SSH{Host: "h", PassEnv: []string{"A"}}, tc.workspace, tc.command, tc.argv, tc.env)
		if e == nil || e.Kind != ErrAgentNotFound || strings.Contains(e.Error(), "secret") {
			t.Errorf("%q: %v, want agent_not_found", tc, e)
		}
	}
}

// inShell runs a script as sshd does, with the remote side's standard input.
func inShell(t testing.TB, shell []string, script string, stdin []byte, env ...string) (stdout, stderr []byte, status int) {
	t.Helper()
	if _, err := exec.LookPath(shell[0]); err != nil {
		t.Skipf("no %s on this machine", shell[0])
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, shell[0], append(slices.Clone(shell[1:]), "-c", script)...) // #nosec G204 -- a test's own script
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errs
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/nowhere"}, env...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.Bytes(), errs.Bytes(), cmd.ProcessState.ExitCode()
}

func inEachShell(t *testing.T, f func(t *testing.T, shell []string)) {
	for _, shell := range [][]string{{"dash"}, {"bash"}, {"bash", "--posix"}, {"busybox", "ash"}} {
		t.Run(strings.Join(shell, " "), func(t *testing.T) { f(t, shell) })
	}
}

// TestSSHWorkspace has a compound command of which nothing may run where the
// directory is missing.
func TestSSHWorkspace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's\n \\ \xff\x01 $(x) -")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Skip("no such name here: ", err)
	}
	inEachShell(t, func(t *testing.T, shell []string) {
		script := func(dir string) string {
			args, _, e := sshCommand(&SSH{Host: "h"}, dir, "false; pwd; echo two; true # end", nil, nil)
			if e != nil {
				t.Fatal(e)
			}
			return args[len(args)-1]
		}
		for _, locale := range []string{"LC_ALL=C", "LC_ALL=C.UTF-8"} {
			if out, errs, status := inShell(t, shell, script(dir), nil, locale); string(out) != dir+"\ntwo\n" || status != 0 {
				t.Errorf("%s: %q, %q, status %d", locale, out, errs, status)
			}
		}
		if out, _, status := inShell(t, shell, script(dir+"/none"), nil); len(out) != 0 || status == 0 {
			t.Errorf("ran outside of its workspace: %q, status %d", out, status)
		}
	})
}

// TestSSHPreamble plays the preamble through real shells: the values arrive
// byte for byte, in the command's environment, and what stands behind them is
// the runtime's.
func TestSSHPreamble(t *testing.T) {
	t.Parallel()
	every := make([]byte, 0, 512) // every byte, first alone among letters, then in a row
	for c := range 256 {
		every = append(every, byte(c), 'x')
	}
	for c := range 256 {
		every = append(every, byte(c))
	}
	env := []string{
		"PLAIN=value",
		"QUOTES='\"`$(exit 3)`\"'",
		"BACKSLASH=a\\\nb\\\\\n\\",
		"LINES=\n\n a \n\tb\t\n\n",
		"SPACE=  both ends\t",
		"CUT=half a character \xc3\n\xe2\x82\n\xf0\x9f\x98",
		"EVERY=" + string(bytes.ReplaceAll(every, []byte{0}, nil)),
		"NEWLINES=x" + strings.Repeat("\n", 3000),
		"IFS=alue", "PATH=" + os.Getenv("PATH"), "LC_ALL=C", "acp_l=own", "COLON=:\r",
	}
	var names []string
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
	}
	inEachShell(t, func(t *testing.T, shell []string) {
		args, preamble, e := sshCommand(&SSH{Host: "h", PassEnv: names}, "/", `env -0; echo "$#${acp_v-}${acp_n-}"; cat`, nil, env)
		if e != nil {
			t.Fatal(e)
		}
		const protocol = "{\"id\":1}\n\xff rest"
		for _, remote := range [][]string{nil, {"LC_ALL=C.UTF-8"}, {"LANG=C.UTF-8", "PLAIN=its own", "acp_v=exported"}} {
			out, errs, status := inShell(t, shell, args[len(args)-1], append(slices.Clone(preamble), protocol...), remote...)
			entries := strings.Split(string(out), "\x00")
			for _, entry := range env {
				if !slices.Contains(entries, entry) {
					name, _, _ := strings.Cut(entry, "=")
					t.Errorf("%s did not arrive", name)
				}
			}
			if rest := entries[len(entries)-1]; rest != "0\n"+protocol || status != 0 || len(errs) != 0 {
				t.Errorf("behind the variables %q, standard error %q, status %d", rest, errs, status)
			}
		}
	})
}

// TestSSHPreambleLarge passes 100 KiB of arbitrary bytes, the same in every run.
func TestSSHPreambleLarge(t *testing.T) {
	t.Parallel()
	value := make([]byte, 100<<10)
	rnd := rand.New(rand.NewPCG(1, 2)) // #nosec G404 -- nothing secret
	for i := range value {
		value[i] = byte(1 + rnd.IntN(255))
	}
	args, preamble, e := sshCommand(&SSH{Host: "h", PassEnv: []string{"LARGE"}}, "/", "env -0", nil, []string{"LARGE=" + string(value)})
	if e != nil {
		t.Fatal(e)
	}
	inEachShell(t, func(t *testing.T, shell []string) {
		out, errs, status := inShell(t, shell, args[len(args)-1], preamble, "LANG=C.UTF-8")
		if !slices.Contains(strings.Split(string(out), "\x00"), "LARGE="+string(value)) || status != 0 || len(errs) != 0 {
			t.Errorf("%d bytes arrived, standard error %q, status %d", len(out), errs, status)
		}
	})
}

// TestSSHPreambleLocale checks that reading in the C locale leaves nothing.
func TestSSHPreambleLocale(t *testing.T) {
	inEachShell(t, func(t *testing.T, shell []string) {
		args, preamble, e := sshCommand(&SSH{Host: "h", PassEnv: []string{"A"}}, "/", `env; echo "${LC_ALL-unset}"`, nil, []string{"A=a"})
		if e != nil {
			t.Fatal(e)
		}
		for want, remote := range map[string]string{"unset": "LANG=C.UTF-8", "C.UTF-8": "LC_ALL=C.UTF-8", "": "LC_ALL="} {
			out, _, _ := inShell(t, shell, args[len(args)-1], preamble, remote)
			if !strings.HasSuffix(string(out), "\n"+want+"\n") || strings.Contains(string(out), "LC_ALL=C\n") {
				t.Errorf("%s: %q", remote, out)
			}
		}
	})
}

// TestSSHPreambleDamaged cuts the preamble at every byte and spoils it.
func TestSSHPreambleDamaged(t *testing.T) {
	t.Parallel()
	args, whole, e := sshCommand(&SSH{Host: "h", PassEnv: []string{"A", "B"}}, "/", "echo ran", nil, []string{"A=secret\nx", "B=b"})
	if e != nil {
		t.Fatal(e)
	}
	type row struct{ name, stdin, want string }
	var rows []row
	for n := range len(whole) {
		rows = append(rows, row{fmt.Sprintf("%d bytes", n), string(whole[:n]), "did not arrive whole"})
	}
	const damaged = "arrived damaged"
	spoil := func(from, to string) string { return strings.Replace(string(whole), from, to, 1) }
	rows = append(rows,
		row{"a line eaten", spoil("2\nsecret\n", "2\n") + "rest\n", damaged},
		row{"a count eaten", spoil("2\n", ""), damaged},
		row{"no count", spoil("2\n", "\n"), damaged},
		row{"a count of none", spoil("2\n", "0\n"), damaged},
		row{"a count beyond counting", spoil("2\n", "2000000000\n"), damaged},
		row{"a line too many", spoil("2\n", "1\n"), damaged},
		row{"a line too few", spoil("1\nb\n", "2\nb\n") + "rest\n", damaged},
		row{"another end", spoil(preambleEnd, preambleEnd+" "), damaged},
	)
	inEachShell(t, func(t *testing.T, shell []string) {
		for _, r := range rows {
			out, errs, status := inShell(t, shell, args[len(args)-1], []byte(r.stdin))
			if len(out) != 0 || status != 93 || !strings.Contains(string(errs), r.want) {
				t.Errorf("%s: %q, %q, status %d", r.name, out, errs, status)
			}
			if strings.Contains(string(errs), "secret") {
				t.Errorf("%s: a value on standard error: %q", r.name, errs)
			}
		}
		if out, errs, status := inShell(t, shell, args[len(args)-1], whole); string(out) != "ran\n" || status != 0 {
			t.Errorf("whole: %q, %q, status %d", out, errs, status)
		}
	})
}

// TestSSHPreambleReadOnly passes a variable that the remote shell keeps to itself.
func TestSSHPreambleReadOnly(t *testing.T) {
	args, preamble, e := sshCommand(&SSH{Host: "h", PassEnv: []string{"UID"}}, "/", "echo ran", nil, []string{"UID=secret"})
	if e != nil {
		t.Fatal(e)
	}
	out, errs, status := inShell(t, []string{"bash"}, args[len(args)-1], preamble)
	if len(out) != 0 || status != 93 || !strings.Contains(string(errs), "cannot be set here") || strings.Contains(string(errs), "secret") {
		t.Errorf("%q, %q, status %d", out, errs, status)
	}
}

// FuzzQuote has a real shell print the words back, byte for byte.
func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "'", "''", `\'`, "a b\x00c\nd", "\xff\x81\x88\x01\x7f", "$(x)`y`!", "-n\x00--\x00\\c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		words := strings.Split(s, "\x00")
		script := `for w in`
		for _, w := range words {
			script += " " + quote(w)
		}
		out, errs, status := inShell(t, []string{"sh"}, script+`; do printf '%s\0' "$w"; done`, nil)
		if string(out) != s+"\x00" || status != 0 {
			t.Errorf("%q came back as %q, %q, status %d", s, out, errs, status)
		}
	})
}
