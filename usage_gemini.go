package acp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const telemetryFile = "telemetry.json"

// gemini measures Gemini CLI.
type gemini struct{}

func (gemini) agent() string        { return "gemini-cli" }
func (gemini) commands() []string   { return []string{"gemini", "gemini-cli"} }
func (gemini) delay() time.Duration { return 6 * time.Second } // a batch tick of 5 s and slack

func (gemini) arm() (gauge, []string, error) {
	dir, err := os.MkdirTemp("", "acp-usage-*") // mode 0700
	if err != nil {
		return nil, nil, err
	}
	g := &geminiGauge{}
	// The runtime has another working directory.
	if g.dir, err = filepath.Abs(dir); err == nil {
		g.root, err = os.OpenRoot(g.dir)
	}
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return g, []string{
		"GEMINI_TELEMETRY_ENABLED=true",
		"GEMINI_TELEMETRY_TARGET=local",
		"GEMINI_TELEMETRY_OUTFILE=" + filepath.Join(g.dir, telemetryFile),
	}, nil
}

// geminiGauge reads what one process writes: its telemetry, into a directory of
// ours, and the journal that it keeps of every session.
type geminiGauge struct {
	dir  string
	root *os.Root // of dir

	session string
	log     stream
	from    int64 // values of the telemetry before this offset do not count
	lost    bool  // the telemetry went past a bound or is another file
	sum     figure
	chats   journal
}

func (g *geminiGauge) discard() error {
	return errors.Join(g.root.Close(), os.RemoveAll(g.dir))
}

func (g *geminiGauge) open(sessionID string, env []string) {
	g.session = sessionID
	g.from = math.MaxInt64
	g.read()
	g.from = g.log.pos
	g.chats = journal{
		session: sessionID,
		home:    geminiHome(env),
		files:   map[string]*stream{},
		before:  map[string]bool{},
		spent:   map[string]figure{},
	}
	g.chats.look(true)
}

// geminiHome returns the directory that holds .gemini for a child with env.
func geminiHome(env []string) string {
	if env == nil {
		env = os.Environ()
	}
	last := func(name string) (value string) {
		for _, kv := range env {
			if v, ok := strings.CutPrefix(kv, name+"="); ok {
				value = v
			}
		}
		return value
	}
	home := last("GEMINI_CLI_HOME")
	if home == "" {
		if runtime.GOOS == "windows" {
			home = last("USERPROFILE")
		} else {
			home = last("HOME")
		}
	}
	if home == "" {
		home, _ = os.UserHomeDir()
	}
	if home != "" && !filepath.IsAbs(home) {
		home = filepath.Join(last("PWD"), home)
	}
	return home
}

func (g *geminiGauge) read() figure {
	if g.lost {
		return g.sum
	}
	unread := int64(maxUnread)
	err := g.log.read(g.root, telemetryFile, &unread, func(start int64, value []byte) bool {
		if start >= g.from {
			g.record(value)
		}
		return true
	})
	// Any other error may pass: the file is not there yet, or none is left to open.
	g.lost = errors.Is(err, errBound) || errors.Is(err, errReplaced)
	return g.sum
}

// record counts one value of the telemetry if it is a model's answer.
//
// SPEC 9, Gemini reading: of our session, with every counter mapped. The
// metrics repeat totals and are no answers.
func (g *geminiGauge) record(value []byte) {
	const event = "gemini_cli.api_response"
	if !bytes.Contains(value, []byte(event)) { // spares the decoding of most
		return
	}
	var r struct {
		Attributes struct {
			Event    string `json:"event.name"`
			Session  string `json:"session.id"`
			Role     string `json:"role"`
			Model    string `json:"model"`
			Input    *int64 `json:"input_token_count"`
			Output   *int64 `json:"output_token_count"`
			Thoughts *int64 `json:"thoughts_token_count"`
			Cached   *int64 `json:"cached_content_token_count"`
		} `json:"attributes"`
	}
	if json.Unmarshal(value, &r) != nil {
		return
	}
	a := &r.Attributes
	if a.Event != event || a.Session != g.session {
		return
	}
	for _, n := range []*int64{a.Input, a.Output, a.Thoughts, a.Cached} {
		if n == nil || *n < 0 {
			return
		}
	}
	bounded := g.sum.plain
	g.sum.add(*a.Input, *a.Output, *a.Thoughts, *a.Cached)
	if strings.HasPrefix(a.Role, "utility_") {
		// A router's call is spent, but no quota counts it: in a batch of its own,
		// written in mid answer, it would pass for the answer.
		g.sum.plain = bounded
	}
	g.sum.model = modelName(a.Model, g.sum.model)
}

// modelName returns name, or before if name says nothing.
func modelName(name, before string) string {
	if name == "" || len(name) > maxName {
		return before
	}
	return name
}

func (g *geminiGauge) readOther() figure {
	g.chats.look(false)
	return g.chats.figure()
}

// A journal is what Gemini CLI keeps of one session below its home directory.
// A continued session may have several files.
type journal struct {
	session, home string
	files         map[string]*stream // those that are the session's
	before        map[string]bool    // ids of the messages that were there at open
	spent         map[string]figure  // by message id
	model         string
	lost          bool // past a bound
}

func (j *journal) figure() (sum figure) {
	for _, f := range j.spent {
		sum.input = plus(sum.input, f.input)
		sum.output = plus(sum.output, f.output)
		sum.cached = plus(sum.cached, f.cached)
		sum.plain = plus(sum.plain, f.plain)
	}
	sum.model = j.model
	return sum
}

// look reads what was appended to the session's files. With opening the
// messages in it are those that do not count.
func (j *journal) look(opening bool) {
	root, err := os.OpenRoot(j.home)
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }()
	entries, unread := maxEntries, int64(maxUnread)
	const projects = ".gemini/tmp"
	for _, p := range listDir(root, projects, fs.ModeDir, &entries) {
		chats := path.Join(projects, p, "chats")
		for _, c := range listDir(root, chats, 0, &entries) {
			if name := path.Join(chats, c); path.Ext(c) == ".jsonl" && !j.lost {
				j.file(root, name, opening, &unread)
			}
		}
	}
}

func (j *journal) file(root *os.Root, name string, opening bool, unread *int64) {
	s := j.files[name]
	if s == nil {
		if !j.heads(root, name) {
			return
		}
		s = &stream{lines: true}
		j.files[name] = s
	}
	line := func(_ int64, value []byte) bool { return j.line(value, opening) }
	err := s.read(root, name, unread, line)
	if errors.Is(err, errReplaced) {
		// Read again from its beginning: a message counts once by its id.
		*s = stream{lines: true}
		err = s.read(root, name, unread, line)
	}
	j.lost = j.lost || errors.Is(err, errBound)
}

// heads reports whether the file's first line names the session.
func (j *journal) heads(root *os.Root, name string) bool {
	f, _, err := openPlain(root, name, 0)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, maxHeader)
	n, _ := io.ReadFull(f, buf)
	head, _, _ := bytes.Cut(buf[:n], []byte("\n"))
	var h struct {
		SessionID string `json:"sessionId"`
	}
	return json.Unmarshal(head, &h) == nil && h.SessionID == j.session
}

// chat is a message of the journal.
type chat struct {
	ID     string `json:"id"`
	Model  string `json:"model"`
	Tokens *struct {
		Input    int64 `json:"input"`
		Output   int64 `json:"output"`
		Thoughts int64 `json:"thoughts"`
		Cached   int64 `json:"cached"`
	} `json:"tokens"`
}

// line takes one line of a file: a message, or a change that lists messages.
// It returns false when there are too many, named or not.
func (j *journal) line(line value, opening bool) bool {
	var s scanner
	if _, ok := s.scan(line); !ok {
		return true
	}
	n := 0
	for _, m := range line.get("$set").get("messages").each {
		if n++; n > maxMessages || !j.message(m, opening) {
			return false
		}
	}
	return j.message(line, opening)
}

// SPEC 9, Gemini reading: messages with tokens, the last occurrence of an id
// wins, those present at open excluded. It returns false when there are too many.
func (j *journal) message(m value, opening bool) bool {
	if len(j.before)+len(j.spent) >= maxMessages {
		return false
	}
	var c chat
	if json.Unmarshal(m, &c) != nil || c.ID == "" || len(c.ID) > maxName {
		return true
	}
	if opening {
		j.before[c.ID] = true
	}
	t := c.Tokens
	if j.before[c.ID] || t == nil || min(t.Input, t.Output, t.Thoughts, t.Cached) < 0 {
		return true
	}
	var f figure
	f.add(t.Input, t.Output, t.Thoughts, t.Cached)
	j.spent[c.ID] = f
	j.model = modelName(c.Model, j.model)
	return true
}
