package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
	"github.com/sortie-ai/acp/interop/model"
)

const (
	// Far more than a runtime takes: these rows are about what happens, and a
	// busy machine must not change that.
	handshakeTimeout = 3 * time.Minute
	readTimeout      = 2 * time.Minute
	rowTimeout       = 10 * time.Minute

	stopGrace   = 5 * time.Second
	cancelBound = 30 * time.Second
	markName    = "ACP_INTEROP_MARK" // in the environment of every process of a run
)

var installer = &Installer{Root: cacheDir()}

func cacheDir() string {
	dir, err := filepath.Abs(".cache")
	if err != nil {
		panic(err)
	}
	return dir
}

// installed returns the folder of a pin. Without a registry the test is skipped
// for a person and fails in CI.
func installed(t *testing.T, name string) string {
	t.Helper()
	pin, ok := Pins()[name]
	if !ok {
		t.Fatalf("pins.txt has no line %s", name)
	}
	dir, err := installer.Dir(t.Context(), pin)
	if err != nil && os.Getenv("CI") != "true" {
		table.skip(t, "not installed: "+err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func nodeDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(installed(t, "node22"), "node_modules", "node", "bin")
}

// A bench is one runtime with a home, a workspace and a model of its own.
type bench struct {
	*testing.T
	rt        Runtime
	dir, node string
	home      string
	workspace string
	model     *model.Server
	adapter   *acp.Adapter
	mark      string
	schema    *schemas
	ctx       context.Context
}

// newBench installs the runtime if need be and makes a place for it to run in.
func newBench(t *testing.T, rt Runtime) *bench {
	t.Helper()
	b := bareBench(t, rt)
	b.dir, b.node = installed(t, rt.pinName()), nodeDir(t)
	var err error
	b.model, err = model.Start()
	b.must(err)
	t.Cleanup(func() { _ = b.model.Close() })
	if rt.Setup != nil {
		l, err := Runtime{Argv: rt.Setup}.prepare(Posture{}, b.dir, b.node, b.home, b.model.URL)
		b.must(err)
		cmd := exec.CommandContext(b.ctx, l.Argv[0], l.Argv[1:]...)
		cmd.Env, cmd.Dir = append(l.Env, markName+"="+b.mark), b.workspace
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("set-up: %v\n%s", err, out)
		}
	}
	return b
}

// newRoleBench makes a bench whose runtime is the test binary in a role.
func newRoleBench(t *testing.T, role string, env ...string) *bench {
	t.Helper()
	b := bareBench(t, Runtime{Name: role, Argv: []string{testBinary(t)}, Env: append(env, roleName+"="+role)})
	b.model = &model.Server{}
	return b
}

func testBinary(t *testing.T) string {
	t.Helper()
	name, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func bareBench(t *testing.T, rt Runtime) *bench {
	t.Helper()
	b := &bench{T: t, rt: rt, schema: loadSchemas(t)}
	ctx, cancel := context.WithTimeout(t.Context(), rowTimeout)
	t.Cleanup(cancel)
	b.ctx = ctx
	root, err := os.MkdirTemp("", "interop-")
	b.must(err)
	b.mark = filepath.Base(root)
	// Not t.TempDir: what escaped may still write when the files go.
	t.Cleanup(func() {
		b.killLeft()
		_ = os.RemoveAll(root)
	})
	b.home, b.workspace = filepath.Join(root, "home"), filepath.Join(root, "work")
	b.must(os.Mkdir(b.home, 0o700))
	b.must(os.Mkdir(b.workspace, 0o700))
	b.must(exec.CommandContext(ctx, "git", "init", "-q", b.workspace).Run())
	b.adapter, err = acp.New(nil)
	b.must(err)
	return b
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// A run is a session of the bench's runtime.
type run struct {
	*acp.Session
	b     *bench
	wire  *transcript
	log   *bytes.Buffer // of level Info and above
	asked int           // requests that the model had had before
}

// start launches the runtime in a posture. change may be nil.
func (b *bench) start(p Posture, change func(*acp.Config)) *run {
	b.Helper()
	l, err := b.rt.prepare(p, b.dir, b.node, b.home, b.model.URL)
	b.must(err)
	r := &run{b: b, wire: &transcript{}, log: &bytes.Buffer{}, asked: len(b.model.Requests())}
	c := acp.Config{
		Workspace: b.workspace, Argv: l.Argv, Env: append(l.Env, markName+"="+b.mark),
		HandshakeTimeout: handshakeTimeout, ReadTimeout: readTimeout, StopGrace: stopGrace, ChunkText: true, Record: r.wire,
		Logger: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	if change != nil {
		change(&c)
	}
	s, err := b.adapter.Start(b.ctx, c)
	if err != nil {
		b.Fatalf("start: %v\n%s", err, r.wire.tail(30))
	}
	r.Session = s
	b.Cleanup(func() {
		_ = s.Stop(context.Background())
		if b.Failed() {
			b.Logf("log:\n%s\nwire:\n%s", r.log, r.wire.tail(60))
		}
		b.must(r.wire.save(b.Name()))
		b.schema.checkSent(b.T, r.wire)
	})
	return r
}

// A turn is what RunTurn told.
type turn struct {
	acp.Result
	events []acp.Event
	text   string // all chunks
	err    *acp.Error
}

// turn runs a prompt; seen, if not nil, is called with every event.
func (r *run) turn(ctx context.Context, prompt string, seen func(acp.Event)) turn {
	r.b.Helper()
	var tn turn
	var text strings.Builder
	res, err := r.RunTurn(ctx, prompt, func(e acp.Event) {
		tn.events = append(tn.events, e)
		text.WriteString(e.Text)
		if seen != nil {
			seen(e)
		}
	})
	tn.Result, tn.text = res, text.String()
	if err != nil && !errors.As(err, &tn.err) {
		r.b.Fatalf("an error of type %T: %v", err, err)
	}
	r.checkTurn(tn)
	return tn
}

// checkTurn checks what holds for every turn of every runtime.
func (r *run) checkTurn(tn turn) {
	b := r.b
	b.Helper()
	if len(tn.events) < 2 || tn.events[0].Type != acp.SessionStarted {
		b.Fatalf("events: %v", tn.events)
	}
	for i, e := range tn.events {
		terminal := e.Type == acp.TurnCompleted || e.Type == acp.TurnFailed || e.Type == acp.TurnCancelled || e.Type == acp.TurnInputRequired
		if terminal != (i == len(tn.events)-1) || terminal && e.Type != tn.ExitReason {
			b.Errorf("event %d of %d is %s; the result says %s", i+1, len(tn.events), e.Type, tn.ExitReason)
		}
	}
	if (tn.err == nil) != (tn.ExitReason == acp.TurnCompleted) {
		b.Errorf("%s with error %v", tn.ExitReason, tn.err)
	}
}

// done runs a prompt whose turn must complete.
func (r *run) done(prompt string) turn {
	r.b.Helper()
	tn := r.turn(r.b.ctx, prompt, nil)
	if tn.err != nil {
		r.b.Fatalf("turn %q: %v", prompt, tn.err)
	}
	return tn
}

// says is the text of an ordinary turn.
func (b *bench) says() string {
	if b.rt.Facts.Says != "" {
		return b.rt.Facts.Says
	}
	return model.Greeting
}

func (tn turn) of(kind acp.EventType) []acp.Event {
	return slices.DeleteFunc(slices.Clone(tn.events), func(e acp.Event) bool { return e.Type != kind })
}

// message returns the last message that was reported whole.
func (tn turn) message() string {
	last := ""
	for _, e := range tn.of(acp.Notification) {
		if e.Message != "" {
			last = e.Message
		}
	}
	return last
}

// stop ends the session and compares what is left with what must escape and what
// may.
func (r *run) stop(must, may []string) {
	b, allowed := r.b, slices.Concat(must, may)
	b.Helper()
	began := time.Now()
	if err := r.Stop(b.ctx); err != nil {
		b.Errorf("stop: %v", err)
	}
	if took := time.Since(began); took > stopGrace+3*time.Second {
		b.Errorf("stop took %v", took)
	}
	// What was killed a moment ago may still be on its way out.
	var left []proc
	for range 40 {
		left = b.left()
		if !slices.ContainsFunc(left, func(p proc) bool { return !p.named(allowed) }) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, p := range left {
		if !p.named(allowed) {
			b.Errorf("left behind: %d %s", p.pid, p.command)
		}
	}
	for _, name := range must {
		if !slices.ContainsFunc(left, func(p proc) bool { return strings.Contains(p.command, name) }) {
			b.Errorf("%s is said to escape, and did not", name)
		}
	}
	b.killLeft()
}

// A proc is a live process of the bench.
type proc struct {
	pid     int
	command string
}

func (p proc) named(names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.Contains(p.command, n) })
}

// catches reports whether the process has a handler of its own for sig.
func (p proc) catches(sig syscall.Signal) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	for line := range strings.Lines(string(status)) {
		if mask, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && bits>>(sig-1)&1 == 1
		}
	}
	return false
}

// left returns the processes that carry the bench's mark.
func (b *bench) left() []proc {
	var all []proc
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A process that is gone or a zombie has an empty environment.
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if !slices.Contains(strings.Split(string(env), "\x00"), markName+"="+b.mark) {
			continue
		}
		command, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		all = append(all, proc{pid, strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))})
	}
	return all
}

func (b *bench) killLeft() {
	for _, p := range b.left() {
		if q, err := os.FindProcess(p.pid); err == nil {
			_ = q.Kill()
		}
	}
}

// A transcript keeps what Config.Record writes.
type transcript struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *transcript) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

type wireLine struct {
	T    float64
	Dir  string
	Line string
}

func (w *transcript) lines() []wireLine {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []wireLine
	for line := range bytes.Lines(w.buf.Bytes()) {
		var l wireLine
		if json.Unmarshal(line, &l) == nil {
			all = append(all, l)
		}
	}
	return all
}

// A rpc is a message on the wire.
type rpc struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  json.RawMessage
}

// messages returns what went in one direction: "send" or "recv".
func (w *transcript) messages(dir string) []rpc {
	var all []rpc
	for _, l := range w.lines() {
		var m rpc
		if l.Dir == dir && json.Unmarshal([]byte(l.Line), &m) == nil {
			all = append(all, m)
		}
	}
	return all
}

// answer returns the runtime's answer to our first request of a method.
func (w *transcript) answer(method string) (rpc, bool) {
	var id json.RawMessage
	for _, m := range w.messages("send") {
		if m.Method == method && id == nil {
			id = m.ID
		}
	}
	for _, m := range w.messages("recv") {
		if m.Method == "" && id != nil && bytes.Equal(m.ID, id) {
			return m, true
		}
	}
	return rpc{}, false
}

func (w *transcript) tail(n int) string {
	lines := w.lines()
	var b strings.Builder
	for _, l := range lines[max(0, len(lines)-n):] {
		fmt.Fprintf(&b, "%8.0f %-6s %.400s\n", l.T, l.Dir, l.Line)
	}
	return b.String()
}

// save keeps the transcript of a real run for a person to look at.
func (w *transcript) save(test string) error {
	name := filepath.Join(cacheDir(), "transcripts", strings.ReplaceAll(test, "/", ".")+".jsonl")
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return os.WriteFile(name, w.buf.Bytes(), 0o600)
}
