package script

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// scenario is what is needed of a scenario file to play it. The rest is the
// test's.
type scenario struct {
	ID     string
	Script []step
}

// step is one step: a verb, which is the one key that is no modifier, and what
// goes with it.
type step struct {
	verb string

	// Of the client.
	Expect        string          `json:"expect"`         // METHOD: wait for it
	As            string          `json:"as"`             // expect: the name its id is bound to
	Require       map[string]rule `json:"require"`        // expect: dotted path -> rule
	WithinMS      int             `json:"within_ms"`      // the two below too: not later than that
	ExpectReply   json.RawMessage `json:"expect_reply"`   // ID: wait for the answer to that request
	ExpectReplies int             `json:"expect_replies"` // N: wait for so many answers to any requests
	Want          map[string]any  `json:"want"`           // of an answer: dotted path -> value
	ExpectNoneMS  int             `json:"expect_none_ms"` // the client writes nothing meanwhile
	WaitStdinEOF  bool            `json:"wait_stdin_eof"`
	StopReading   bool            `json:"stop_reading"`
	ReadSlowMS    int             `json:"read_slow"`  // from here on a byte every so many milliseconds
	AnswerAll     bool            `json:"answer_all"` // answer by rule until the end of input
	Until         string          `json:"until"`      // answer_all: or until this method, left to the next step

	// To the client.
	Send          string   `json:"send"`            // LINE
	EOL           *string  `json:"eol"`             // send: instead of a newline
	BOM           bool     `json:"bom"`             // send: a byte order mark ahead
	SendBlock     []string `json:"send_block"`      // lines in one write
	SendB64       string   `json:"send_b64"`        // bytes
	SendChunksB64 []string `json:"send_chunks_b64"` // bytes in pieces
	GapMS         int      `json:"gap_ms"`          // send_chunks_b64, spawn_writer, respawn: between two
	SendFill      struct {
		Prefix, Byte, Suffix string
		Count                int64
	} `json:"send_fill"` // a line of any length
	SendSeq struct {
		N     int
		Line  string
		GapMS int `json:"gap_ms"`
	} `json:"send_seq"` // n lines
	Stderr     string `json:"stderr"`
	StderrFill int64  `json:"stderr_fill"`
	OneLine    bool   `json:"one_line"` // stderr_fill: without a newline

	// Of the process.
	SleepMS     int      `json:"sleep_ms"`
	Exit        int      `json:"exit"`
	CloseStdin  bool     `json:"close_stdin"`
	CloseStdout bool     `json:"close_stdout"`
	CloseStderr bool     `json:"close_stderr"`
	Ignore      []string `json:"ignore"`       // signals
	OnTermMS    *int     `json:"on_term_ms"`   // handle the graceful signal: work so long, touch the path, exit
	Path        string   `json:"path"`         // on_term_ms
	Status      int      `json:"status"`       // on_term_ms: the exit status
	StopSelf    bool     `json:"stop_self"`    // SIGSTOP
	KillSelf    bool     `json:"kill_self"`    // SIGKILL
	SpawnHolder int      `json:"spawn_holder"` // SECONDS: a child that holds stdout and stderr
	Holds       string   `json:"holds"`        // spawn_holder: "stdout" or "stderr" alone
	SpawnWriter int      `json:"spawn_writer"` // SECONDS: a child that writes to stdout
	Line        string   `json:"line"`         // spawn_writer: what it writes
	Respawn     int      `json:"respawn"`      // N children that replace themselves
	Seconds     int      `json:"seconds"`      // respawn: for so long; 0: a minute
	Escape      bool     `json:"escape"`       // the three spawning ones: in a session of their own
}

func modifier(key string) bool {
	switch key {
	case "as", "require", "within_ms", "want", "until", "eol", "bom", "gap_ms", "one_line",
		"path", "status", "line", "seconds", "escape", "holds":
		return true
	}
	return false
}

// UnmarshalJSON takes a step with exactly one verb and no key it does not know.
func (s *step) UnmarshalJSON(b []byte) error {
	type plain step
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	d.UseNumber()
	if err := d.Decode((*plain)(s)); err != nil {
		return fmt.Errorf("step %s: %w", b, err)
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(b, &keys); err != nil {
		return err
	}
	for key := range keys {
		switch {
		case modifier(key):
		case s.verb != "":
			return fmt.Errorf("step %s: more than one verb", b)
		default:
			s.verb = key
		}
	}
	if s.verb == "" {
		return fmt.Errorf("step %s: no verb", b)
	}
	return nil
}

func loadScenario(name string) (*scenario, error) {
	b, err := os.ReadFile(name) // #nosec G304 -- the command line names the file
	if err != nil {
		return nil, err
	}
	sc := new(scenario)
	if err := json.Unmarshal(b, sc); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return sc, nil
}
