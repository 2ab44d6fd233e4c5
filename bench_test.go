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
	switch os.Getenv(benchRole) {
	case "agent":
		benchAgent(os.Args[1], os.Stdin, os.Stdout)
		os.Exit(0)
	case "client":
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
	began := time.Now()
	for range j.Times {
		if err := c.prompt(prompt); err != nil {
			return nil, err
		}
	}
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	messages := float64(j.N * j.Times)
	r := benchResult{
		"msg/s": messages / took.Seconds(), "allocs/msg": float64(after.Mallocs-before.Mallocs) / messages,
		"peak-MiB": float64(status("VmHWM")) / 1024,
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

// benchAgent answers every request at once. To a prompt "n=K" it says K updates
// first, rendered once and written in large blocks, so that it never is what
// limits a client; to any other prompt what its first argument names.
func benchAgent(says string, in io.Reader, out io.Writer) {
	cycle := benchLines(says)
	block := bytes.Repeat(bytes.Join(cycle, nil), 1+1<<20/len(bytes.Join(cycle, nil)))
	perBlock := bytes.Count(block, []byte("\n"))
	put := func(p []byte) {
		if _, err := out.Write(p); err != nil {
			os.Exit(0)
		}
	}
	updates := func(n int) {
		for ; n >= perBlock; n -= perBlock {
			put(block)
		}
		size := 0
		for i := range n {
			size += len(cycle[i%len(cycle)])
		}
		put(block[:size])
	}
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct{ Prompt []struct{ Text string } }
		}
		if json.Unmarshal(line, &m) != nil || m.ID == nil {
			continue
		}
		answer := `{"protocolVersion":1,"agentInfo":{"name":"bench","version":"1"}}`
		switch m.Method {
		case "session/new":
			answer = `{"sessionId":"` + benchSID + `"}`
		case "session/prompt":
			answer = `{"stopReason":"end_turn"}`
			if n, ok := strings.CutPrefix(m.Params.Prompt[0].Text, "n="); ok {
				k, _ := strconv.Atoi(n)
				updates(k)
			} else {
				misbehave(says, block, put)
			}
		}
		put([]byte(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + answer + "}\n"))
	}
}

// misbehave says 512 MiB of updates, or a line of 64 MiB, or one without an end.
func misbehave(says string, block []byte, put func([]byte)) {
	long := bytes.Repeat([]byte("x"), 1<<20)
	switch says {
	case "flood":
		for range 512 << 20 / len(block) {
			put(block)
		}
	case "bigline":
		for range 64 {
			put(long)
		}
		put([]byte("\n"))
	case "endless":
		for range 512 {
			put(long)
		}
		select {} // it was not the end of the line
	}
}

// benchLines is the cycle of updates that a runtime repeats.
func benchLines(says string) [][]byte {
	update := func(u string) []byte {
		return []byte(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"` + benchSID + `","update":` + u + "}}\n")
	}
	size := 40
	if s, ok := strings.CutPrefix(says, "text:"); ok {
		size, _ = strconv.Atoi(s)
	} else if says == "flood" {
		size = 2048
	}
	const prose = `The quick brown fox edits main.go, then runs \"go test\" \u00e9 and\n`
	text := strings.Repeat(prose, size/64) + strings.Repeat("x", size%64)
	chunk := update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"` + text + `"}}`)
	switch says {
	case "unknown":
		return [][]byte{update(`{"sessionUpdate":"telemetry","samples":[1,2,3]}`)}
	case "mixed": // ten chunks in sixteen, and three that make no event
	default:
		return [][]byte{chunk}
	}
	call := update(`{"sessionUpdate":"tool_call","toolCallId":"call_001","title":"Reading configuration file","kind":"read","status":"pending","content":[],"locations":[{"path":"/home/user/main.go","line":42}],"rawInput":{"path":"/home/user/main.go","limit":200}}`)
	done := update(`{"sessionUpdate":"tool_call_update","toolCallId":"call_001","status":"completed","content":[{"type":"content","content":{"type":"text","text":"` + strings.Repeat("output ", 30) + `"}}],"rawOutput":{"exit":0,"lines":12}}`)
	plan := update(`{"sessionUpdate":"plan","entries":[{"content":"Read the code","priority":"high","status":"completed"},{"content":"Run tests","priority":"low","status":"pending"}]}`)
	usage := update(`{"sessionUpdate":"usage_update","used":53000,"size":200000,"cost":{"amount":0.045,"currency":"USD"}}`)
	thought := update(`{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"` + text + `"}}`)
	return [][]byte{
		chunk, chunk, chunk, call, chunk, chunk, done, chunk, chunk, done, chunk, chunk, plan, chunk, usage, thought,
	}
}
