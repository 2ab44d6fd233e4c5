package acp

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A source knows how to measure the tokens that one runtime spends, from
// outside the wire. It holds no state: two of the same runtime are equal.
type source interface {
	agent() string        // the agentInfo.name of the runtime
	commands() []string   // the names this runtime is started under
	delay() time.Duration // how long its figures may take behind an answer
	// arm prepares the measurement of one process: a private directory, and
	// variables for its environment, which go behind all others.
	arm() (g gauge, env []string, err error)
}

// A gauge is an armed source. Its methods are for one goroutine at a time,
// discard apart.
type gauge interface {
	// open begins the measurement of a session. What was spent before does not
	// count. env is the runtime's environment; nil: this process's own.
	open(sessionID string, env []string)
	// read returns what the session has spent, as far as it is known by now.
	read() figure
	// readOther is read for the second place where the runtime keeps count. It
	// costs more, and is asked when the first falls short.
	readOther() figure
	// discard removes what arm made. It may be called at any time, also twice.
	discard() error
}

// sources lists what there is.
func sources() []source { return []source{gemini{}} }

// sourceFor returns the source that claims a local launch, nil if none does.
//
// SPEC 9, Claim: a word of the command names the runtime.
func sourceFor(words []string) source {
	for _, s := range sources() {
		for _, w := range words {
			if slices.Contains(s.commands(), program(w)) {
				return s
			}
		}
	}
	return nil
}

// sourceNamed returns the source that reads the runtime of this agentInfo.name,
// nil if there is none.
func sourceNamed(agent string) source {
	for _, s := range sources() {
		if s.agent() == agent {
			return s
		}
	}
	return nil
}

// program strips path, file suffix and @version from a word of a command line.
func program(word string) string {
	word = word[strings.LastIndexAny(word, `/\`)+1:]
	for _, suffix := range []string{".js", ".mjs", ".cjs", ".cmd", ".exe", ".bat", ".ps1"} {
		if name, ok := strings.CutSuffix(word, suffix); ok {
			word = name
			break
		}
	}
	name, _, _ := strings.Cut(word, "@")
	return name
}

// quotaBound returns input plus output tokens of a prompt's result, a lower
// bound on what the turn spent; 0: none was named.
func quotaBound(result value) int64 {
	count := result.get("_meta").get("quota").get("token_count")
	if !count.has() {
		return 0
	}
	tokens := func(key string) int64 {
		n, err := strconv.ParseInt(string(count.get(key)), 10, 64)
		if err != nil { // another type; what the other says remains a bound
			return 0
		}
		return max(0, n)
	}
	return plus(tokens("input_tokens"), tokens("output_tokens"))
}

// mostTokens is where every count stops, so that no sum of two overflows.
const mostTokens = math.MaxInt64 / 2

func plus(a, b int64) int64 { return min(min(a, mostTokens)+min(b, mostTokens), mostTokens) }

// A figure is what a session has spent since it was opened.
type figure struct {
	input, output, cached int64 // output with thoughts; cached is a part of input
	plain                 int64 // input and output without thoughts, as bounds count
	model                 string
}

func (f *figure) add(input, output, thoughts, cached int64) {
	f.input = plus(f.input, input)
	f.output = plus(f.output, plus(output, thoughts))
	f.cached = plus(f.cached, min(cached, input))
	f.plain = plus(f.plain, plus(input, output))
}

func (f figure) total() int64 { return f.input + f.output }

func (f figure) usage() Usage {
	return Usage{Input: f.input, Output: f.output, Total: f.total(), CacheRead: f.cached}
}

// raised returns f with every count at least as high as before, and whether
// one of them rose.
func (f figure) raised(by figure) (figure, bool) {
	up := figure{
		input:  max(f.input, by.input),
		output: max(f.output, by.output),
		cached: max(f.cached, by.cached),
		plain:  max(f.plain, by.plain),
		model:  f.model,
	}
	if up == f {
		return f, false
	}
	if by.model != "" {
		up.model = by.model
	}
	return up, true
}

// A meter applies the rules of SPEC 9, Turn and Report, to one session. The
// zero value measures nothing.
type meter struct {
	gauge gauge         // nil: no source
	delay time.Duration // the source's

	dropped  bool   // the source is not asked any more
	last     figure // what was last reported
	owed     int64  // what the bounds of the turns so far still lack
	measured bool   // a figure has arrived in this run
}

// armSource returns a meter for one start of a runtime, and the variables it
// needs. A nil source measures nothing.
func armSource(src source) (m *meter, env []string, err *Error) {
	if src == nil {
		return &meter{}, nil, nil
	}
	g, env, cause := src.arm()
	if cause != nil {
		return nil, nil, fail(ErrPortExit, "the directory for usage figures cannot be made", cause)
	}
	return &meter{gauge: g, delay: src.delay()}, env, nil
}

// open begins the measurement, before the session's first turn.
func (m *meter) open(sessionID string, env []string) {
	if m.gauge != nil {
		m.gauge.open(sessionID, env)
	}
}

// discard removes every file of the meter. It may be called from any
// goroutine, at any time, also twice.
func (m *meter) discard() error {
	if m.gauge == nil {
		return nil
	}
	return m.gauge.discard()
}

// spent is what a turn says of its own spending.
type spent struct {
	showed   bool  // it brought a message or thought chunk or a tool call
	answered bool  // its prompt was answered
	bound    int64 // quotaBound of the answer
}

// reading is what a turn's end learns from the meter.
type reading struct {
	report      bool   // a token_usage event is due
	usage       Usage  // the run's total so far
	model       string // of the last report
	measured    bool   // a figure has arrived in this run
	unaccounted bool   // no figure covers this turn
	dropped     bool   // this turn cost the session its source
}

// turn measures a turn that is over. It waits for the source's figure, at most
// the read timeout, and less when the context ends.
func (m *meter) turn(ctx context.Context, t spent, readTimeout time.Duration) reading {
	// SPEC 9, Turn: without an answer there is no bound to reach.
	if !t.answered {
		t.bound = 0
	}
	var r reading
	if t.showed || t.bound > 0 {
		r.unaccounted = true
		m.owed = plus(m.owed, t.bound)
		if m.gauge != nil && !m.dropped {
			m.settle(ctx, t.bound > 0, readTimeout, &r)
		}
	}
	r.usage, r.model, r.measured = m.last.usage(), m.last.model, m.measured
	return r
}

func (m *meter) settle(ctx context.Context, bounded bool, readTimeout time.Duration, r *reading) {
	fig, end := m.drain(ctx, bounded, readTimeout)
	switch end {
	case cutShort:
		// SPEC 9, Turn: the source did not answer; the turn is unmeasured.
		return
	case timeUp:
		// SPEC 9, Gemini reading: the larger total wins.
		if other := m.gauge.readOther(); other.total() > fig.total() {
			fig = other
		}
	}
	next, rose := m.last.raised(fig)
	if !rose {
		// SPEC 9, Turn: nothing, before any turn had a figure.
		if end == timeUp && !m.measured {
			m.dropped, r.dropped = true, true
		}
		return
	}
	m.owed = max(0, m.owed-(next.plain-m.last.plain))
	m.last, m.measured = next, true
	r.report = true
	r.unaccounted = !bounded || m.owed > 0
}

// drainEnd says why a wait for the source was over.
type drainEnd int

const (
	waiting  drainEnd = iota
	caughtUp          // the figure covers every bound so far
	timeUp            // the source had all its time
	cutShort          // the read timeout came first
	released          // the context ended; what the source knew by then counts
)

// pollEvery is how often the source is read during a wait.
const pollEvery = 100 * time.Millisecond

// drain reads the source until it has caught up or the wait is over.
func (m *meter) drain(ctx context.Context, bounded bool, readTimeout time.Duration) (figure, drainEnd) {
	wait, atEnd := m.delay, timeUp
	if readTimeout < wait {
		wait, atEnd = readTimeout, cutShort
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for end := waiting; ; {
		fig := m.gauge.read()
		if bounded && fig.plain-m.last.plain >= m.owed {
			return fig, caughtUp
		}
		if end != waiting {
			return fig, end
		}
		select {
		case <-poll.C:
		case <-timer.C:
			end = atEnd
		case <-ctx.Done():
			end = released
		}
	}
}
