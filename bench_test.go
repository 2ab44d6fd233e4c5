//go:build linux

package acp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// Every benchmark drives a runtime process from a client process of its own, so
// that peak memory, threads and the allocations counted are the client's alone.
// All three programs are this test binary; init turns it into the client or the
// runtime that benchRole asks for. One iteration runs every client once, the
// floors beside ours: -benchtime=5x is five interleaved runs, of which the median
// is reported.
const (
	benchRole = "ACP_BENCH_ROLE"
	benchSID  = "sess_0123456789abcdef0123456789abcdef"
)

func init() {
	if role := os.Getenv(benchRole); role != "" {
		// An init is locked to its thread: each hand-over would be a switch of threads.
		go benchMain(role)
		select {}
	}
}

func benchMain(role string) {
	if role == "agent" {
		benchAgent(os.Args[1], os.Stdin, os.Stdout)
		os.Exit(0)
	}
	var job benchJob
	err := json.Unmarshal([]byte(os.Args[1]), &job)
	if err == nil {
		var r benchResult
		if r, err = job.run(); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(r)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench client:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A benchJob is what a client process does. A benchResult is what it measured.
type benchJob struct {
	Mode   string // turns, idle, start, stop, blocked, line
	Client string // lines, valid, decode: floors; acp: ours
	Says   string // what the runtime says: text:SIZE, mixed, unknown, flood, bigline, endless
	N      int    // updates a turn
	Times  int    // turns, sessions or starts
	Pinned bool   // client and runtime each have a core
}

type benchResult map[string]float64

func (j benchJob) run() (benchResult, error) {
	switch j.Mode {
	case "idle":
		return j.idle()
	case "start", "stop":
		return j.times()
	case "blocked":
		return j.blocked()
	case "line":
		return j.line()
	}
	return j.turns()
}

// measure runs a job in a process of its own.
func measure(b *testing.B, j benchJob) benchResult {
	b.Helper()
	spec, err := json.Marshal(j)
	if err != nil {
		b.Fatal(err)
	}
	argv := j.pin("1", os.Args[0], string(spec))
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), benchRole+"=client")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		b.Fatal(err)
	}
	var r benchResult
	if err := json.Unmarshal(out, &r); err != nil {
		b.Fatal(err)
	}
	return r
}

// pin gives a command a core, where there is a choice.
func (j benchJob) pin(core string, argv ...string) []string {
	taskset, err := exec.LookPath("taskset")
	if !j.Pinned || err != nil || runtime.NumCPU() < 2 && core == "1" {
		return argv
	}
	return append([]string{taskset, "-c", core}, argv...)
}

// A benchClient is one open session.
type benchClient interface {
	prompt(text string) error
	stop()
}

func (j benchJob) open() (benchClient, error) {
	argv := j.pin("0", os.Args[0], j.Says)
	env := append(os.Environ(), benchRole+"=agent")
	if j.Client != "acp" {
		return openFloor(j.Client, argv, env)
	}
	s, err := benchAdapter.Start(context.Background(), acp.Config{
		Workspace: "/tmp", Argv: argv, Env: env, ReadTimeout: 2 * time.Second, StopGrace: time.Second,
	})
	return &ours{s, nil}, err
}

var benchAdapter acp.Adapter

type ours struct {
	s       *acp.Session
	onEvent func(acp.Event)
}

func (o *ours) prompt(text string) error {
	_, err := o.s.RunTurn(context.Background(), text, o.onEvent)
	return err
}

func (o *ours) stop() { _ = o.s.Stop(context.Background()) }

// floor reads with bufio and no protocol at all: lines alone, lines and
// json.Valid, or lines and json.Unmarshal into the fields that are needed.
type floor struct {
	check func([]byte) bool
	cmd   *exec.Cmd
	in    io.WriteCloser
	r     *bufio.Reader
}

func openFloor(kind string, argv, env []string) (*floor, error) {
	f := &floor{cmd: exec.Command(argv[0], argv[1:]...)}
	f.cmd.Env = env
	switch kind {
	case "lines":
		f.check = func([]byte) bool { return true }
	case "valid":
		f.check = json.Valid
	case "decode":
		f.check = func(line []byte) bool {
			var m struct {
				Params struct {
					Update struct {
						Content struct{ Text string }
					}
				}
			}
			return json.Unmarshal(line, &m) == nil
		}
	}
	in, err := f.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	f.in, f.r = in, bufio.NewReaderSize(out, 64<<10)
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	for _, method := range []string{"initialize", "session/new"} {
		if err := f.call(method, `{}`); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *floor) call(method, params string) error {
	if _, err := fmt.Fprintf(f.in, `{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`+"\n", method, params); err != nil {
		return err
	}
	for {
		line, err := f.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if !f.check(line) {
			return errors.New("a line is no JSON")
		}
		if bytes.HasPrefix(line, []byte(`{"jsonrpc":"2.0","id"`)) {
			return nil
		}
	}
}

func (f *floor) prompt(text string) error {
	return f.call("session/prompt", `{"prompt":[{"type":"text","text":"`+text+`"}]}`)
}

func (f *floor) stop() {
	_ = f.in.Close()
	_ = f.cmd.Process.Signal(syscall.SIGTERM)
	_ = f.cmd.Wait()
}

// turns measures turns of N updates each, behind one to warm up.
func (j benchJob) turns() (benchResult, error) {
	c, err := j.open()
	if err != nil {
		return nil, err
	}
	defer c.stop()
	if err := c.prompt("n=500"); err != nil {
		return nil, err
	}
	prompt := "n=" + strconv.Itoa(j.N)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began, spent := time.Now(), cpu()
	for range j.Times {
		if err := c.prompt(prompt); err != nil {
			return nil, err
		}
	}
	took, spent := time.Since(began), cpu()-spent
	runtime.ReadMemStats(&after)
	messages := float64(j.N * j.Times)
	r := benchResult{
		"msg/s": messages / took.Seconds(), "allocs/msg": float64(after.Mallocs-before.Mallocs) / messages,
		"peak-MiB": float64(status("VmHWM")) / 1024, "cpu-ns/msg": float64(spent.Nanoseconds()) / messages,
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	r["heap-KiB"] = (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / 1024
	return r, nil
}

// idle measures what a session costs that nobody uses, as the resident memory
// of many, after a turn of N updates each if N is not 0.
func (j benchJob) idle() (benchResult, error) {
	var sessions []benchClient
	resident := func(more int) (int, error) {
		for range more {
			c, err := j.open()
			if err != nil {
				return 0, err
			}
			if sessions = append(sessions, c); j.N > 0 {
				if err := c.prompt("n=" + strconv.Itoa(j.N)); err != nil {
					return 0, err
				}
			}
		}
		runtime.GC()
		debug.FreeOSMemory()
		return status("VmRSS"), nil
	}
	defer func() {
		for _, c := range sessions {
			c.stop()
		}
	}()
	base, err := resident(1) // it brings in what every session needs once
	if err != nil {
		return nil, err
	}
	all, err := resident(j.Times)
	return benchResult{"KiB/session": float64(all-base) / float64(j.Times), "threads": float64(status("Threads"))}, err
}

// times measures starts, from the process to the session, or stops.
func (j benchJob) times() (benchResult, error) {
	var took []time.Duration
	for range j.Times {
		began := time.Now()
		c, err := j.open()
		if err != nil {
			return nil, err
		}
		if j.Mode == "start" {
			took = append(took, time.Since(began))
		}
		began = time.Now()
		c.stop()
		if j.Mode == "stop" {
			took = append(took, time.Since(began))
		}
	}
	slices.Sort(took)
	return benchResult{"p50-ms": took[len(took)/2].Seconds() * 1000}, nil
}

// blocked lets the consumer sit on its first event while the runtime has 512
// MiB to say.
func (j benchJob) blocked() (benchResult, error) {
	c, err := j.open()
	if err != nil {
		return nil, err
	}
	blocked, free, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	c.(*ours).onEvent = func(e acp.Event) {
		if e.Type == acp.Notification && blocked != nil {
			close(blocked)
			blocked = nil
			<-free
		}
	}
	first := blocked
	go func() { ended <- c.prompt("go") }()
	<-first
	time.Sleep(time.Second) // in which what would pile up does
	peak := float64(status("VmHWM")) / 1024
	began := time.Now()
	c.stop()
	stopped := time.Since(began)
	close(free)
	<-ended
	return benchResult{"peak-MiB": peak, "stop-ms": stopped.Seconds() * 1000}, nil
}

// line measures what one line far above the bound costs. The turn is lost with
// it, the next one works, unless the line never ended.
func (j benchJob) line() (benchResult, error) {
	c, err := j.open()
	if err != nil {
		return nil, err
	}
	defer c.stop()
	base := status("VmHWM")
	if err := c.prompt("go"); err == nil {
		return nil, errors.New("the turn with the line completed")
	}
	if j.Says == "bigline" {
		if err := c.prompt("n=10"); err != nil {
			return nil, err
		}
	}
	return benchResult{"over-start-MiB": float64(status("VmHWM")-base) / 1024}, nil
}

// cpu is what this process has spent, in user and kernel mode.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// status reads a number of /proc/self/status.
func status(key string) int {
	data, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == key+":" {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	return 0
}
