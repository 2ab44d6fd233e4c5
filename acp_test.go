package acp_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// scratch is the temporary directory of this test binary.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	debug.SetTraceback("all") // the watchdog's panic shows every goroutine
	var err error
	if scratch, err = os.MkdirTemp("", "acptest-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	for _, name := range []string{"TMPDIR", "TMP"} { // ours alone, so that the census can look at it
		if err := os.Setenv(name, scratch); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if err := putSSH(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	moreParallel()
	warmUp()
	left := takeCensus()
	code := m.Run()
	if !sideBySide.Load() {
		return code
	}
	for what, list := range left() {
		fmt.Printf("FAIL: %s left:\n%s\n", what, strings.Join(list, "\n"))
		code = 1
	}
	return code
}

// sshConfig names the configuration that the ssh in PATH reads in these tests.
const sshConfig = "ACP_TEST_SSH_CONFIG"

// putSSH puts an ssh into PATH that reads the configuration of its test.
func putSSH() error {
	ssh, err := exec.LookPath("ssh")
	if err != nil || runtime.GOOS == "windows" {
		return nil // the tests that need it say so
	}
	dir := filepath.Join(scratch, "ssh")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	script := "#!/bin/sh\nexec " + ssh + " ${" + sshConfig + ":+-F \"$" + sshConfig + "\"} \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "ssh"), []byte(script), 0o700); err != nil { // #nosec G306 -- a program
		return err
	}
	return os.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// moreParallel has more tests run side by side than there are processors, unless
// the command line says how many: most of them wait for a bound to pass.
func moreParallel() {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		_ = flag.Set("test.parallel", "8") // there is such a flag
	}
}

// fakeAgent builds the fake runtime once, unless ACP_FAKEAGENT names one.
var fakeAgent = sync.OnceValues(func() (string, error) {
	if name := os.Getenv("ACP_FAKEAGENT"); name != "" {
		return name, nil
	}
	name := filepath.Join(scratch, "fakeagent")
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	out, err := exec.Command("go", "build", "-o", name, "./fakeagent").CombinedOutput() // #nosec G204 -- our own program
	if err != nil {
		return "", fmt.Errorf("go build ./fakeagent: %w\n%s", err, out)
	}
	return name, nil
})

// fake is one run of the fake runtime.
type fake struct {
	acp.Config
	t      *testing.T
	mark   string // in the environment of every process of the run
	report string // the file where the runtime says how its scenario went
	wire   transcript
}

// A transcript may be read while a recorder that was given up still writes it.
type transcript struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (tr *transcript) Write(b []byte) (int, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.all.Write(b)
}

func (tr *transcript) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.all.String()
}

// newFake prepares a run of the fake runtime with these arguments. Its processes
// must be gone when the test ends.
func newFake(t *testing.T, args ...string) *fake {
	t.Helper()
	program, err := fakeAgent()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{t: t, mark: "ACP_TEST_MARK=" + dir, report: filepath.Join(t.TempDir(), "report")}
	f.Config = acp.Config{
		Workspace:   dir,
		Argv:        append([]string{program}, args...),
		Env:         append(os.Environ(), f.mark, "FAKEAGENT_REPORT="+f.report),
		ReadTimeout: 10 * time.Second,
		ChunkText:   true,
		Record:      &f.wire,
		Logger:      slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	t.Cleanup(func() {
		if left := await(func() []string { return marked(f.mark) }); len(left) > 0 {
			t.Errorf("processes left:\n%s", strings.Join(left, "\n"))
		}
	})
	return f
}

// steps prepares a run of a scenario given as its steps, with these arguments
// ahead.
func steps(t *testing.T, script string, args ...string) *fake {
	t.Helper()
	name := filepath.Join(t.TempDir(), "scenario.json")
	if err := os.WriteFile(name, []byte(`{"id":"test","script":[`+script+`]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return newFake(t, append(args, "-scenario", name)...)
}

func (f *fake) start() (*acp.Session, error) {
	f.t.Helper()
	a, err := acp.New(nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return a.Start(context.Background(), f.Config)
}

// mustStart starts a session that is stopped when the test ends.
func (f *fake) mustStart() *acp.Session {
	f.t.Helper()
	s, err := f.start()
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			f.t.Errorf("Stop: %v", err)
		}
	})
	return s
}

// wantKind fails the test unless err is an *Error of that kind with these texts.
func wantKind(t interface {
	Helper()
	Errorf(string, ...any)
}, err error, kind acp.ErrorKind, texts ...string) {
	t.Helper()
	var e *acp.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Errorf("error %v, want kind %s", err, kind)
		return
	}
	for _, text := range texts {
		if !strings.Contains(e.Error(), text) {
			t.Errorf("error %q, want %q in it", e, text)
		}
	}
}

// census checks at the end of a test that nothing is left of what it started:
// goroutines, descriptors and temporary files. A test that runs parallel to
// others cannot have one; their parent can.
func census(t *testing.T) {
	t.Helper()
	watchdog(t)
	leaks(t)
}

// leaks is the census without a watchdog.
func leaks(t *testing.T) {
	t.Helper()
	if _, err := fakeAgent(); err != nil { // so that its build is not counted
		t.Fatal(err)
	}
	left := takeCensus()
	t.Cleanup(func() {
		for what, list := range left() {
			t.Errorf("%s left:\n%s", what, strings.Join(list, "\n"))
		}
	})
}

// takeCensus returns a function that says what has been left since.
func takeCensus() func() map[string][]string {
	counts := map[string]func() []string{
		"goroutines":        goroutines,
		"descriptors":       descriptors,
		"temporary entries": func() []string { return glob("acp-*") },
	}
	before := make(map[string][]string)
	for what, list := range counts {
		before[what] = list()
	}
	return func() map[string][]string {
		left := make(map[string][]string)
		for what, list := range counts {
			if l := await(func() []string { return without(list(), before[what]) }); len(l) > 0 {
				left[what] = l
			}
		}
		return left
	}
}

// sideBySide says that a test has run beside others.
var sideBySide atomic.Bool

// together runs a test that mostly waits beside others of its kind. The census
// comes when all have ended: behind the last test of the process, or of this one
// where it is run alone.
func together(t *testing.T) {
	t.Helper()
	sideBySide.Store(true)
	t.Parallel()
	watchdog(t)
	if _, err := fakeAgent(); err != nil {
		t.Fatal(err)
	}
}

// warmUp has the Go runtime make the descriptors that it keeps.
func warmUp() {
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
}

// watchdog panics, with the stacks of all goroutines, when a test hangs.
func watchdog(t *testing.T) {
	name := t.Name()
	timer := time.AfterFunc(5*time.Minute, func() { panic(name + " hangs") })
	t.Cleanup(func() { timer.Stop() })
}

// await repeats a check until it finds nothing, for 5 s: a process or goroutine
// may be past its last act and still be listed.
func await(list func() []string) []string {
	end := time.Now().Add(5 * time.Second)
	for {
		left := list()
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// without returns the entries of list that are not in before, where entries are
// the same when they begin with the same line.
func without(list, before []string) []string {
	head := func(s string) string { first, _, _ := strings.Cut(s, "\n"); return first }
	known := make(map[string]bool)
	for _, s := range before {
		known[head(s)] = true
	}
	var left []string
	for _, s := range list {
		if !known[head(s)] {
			left = append(left, s)
		}
	}
	return left
}

var goroutineState = regexp.MustCompile(`^(goroutine \d+).*`)

// goroutines lists the stacks of all goroutines but the caller's and those that
// os/signal, which nothing ends, keeps for the process.
func goroutines() []string {
	buf := make([]byte, 1<<20)
	for n := runtime.Stack(buf, true); n == len(buf); n = runtime.Stack(buf, true) {
		buf = make([]byte, 2*len(buf))
	}
	var list []string
	stacks := strings.Split(strings.TrimRight(string(buf), "\x00\n"), "\n\n")
	for _, s := range stacks[1:] {
		if !strings.Contains(s, "os/signal.") {
			list = append(list, goroutineState.ReplaceAllString(s, "$1"))
		}
	}
	return list
}

// descriptors lists what is open, where the system tells.
func descriptors() []string {
	var list []string
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			list = append(list, e.Name()+" -> "+to)
		}
	}
	return list
}

func glob(pattern string) []string {
	list, _ := filepath.Glob(filepath.Join(scratch, pattern))
	return list
}

// marked lists the processes that have mark in their environment, where the
// system tells. A zombie has none.
func marked(mark string) []string {
	var list []string
	names, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range names {
		env, err := os.ReadFile(name) // #nosec G304 -- of /proc
		if err == nil && bytes.Contains(env, []byte(mark)) {
			cmd, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline")) // #nosec G304 -- of /proc
			list = append(list, name+" "+strings.ReplaceAll(string(cmd), "\x00", " "))
		}
	}
	return list
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	return len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}
