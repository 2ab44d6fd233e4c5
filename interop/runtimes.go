package interop

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Runtime is how a real agent runtime is launched, pointed at the model, and
// what is known of it. In argv, env and files {dir} is its installation, {home}
// its home directory and {url} the model.
type Runtime struct {
	Name string // of its rows; its pin too, if Pin is empty
	Pin  string
	CI   bool // belongs to the smaller set

	Argv  []string
	Env   []string
	Files map[string]string // below the home directory
	Setup []string          // runs once in a fresh home

	Asks Posture // what makes it ask for permission
	Free Posture // what keeps it from asking

	MCP   bool     // offers the tools of a delivered server to the model at once
	Trust []string // what lets it start a delivered server while it asks

	Facts Facts
	Only  []string // the rows to run; nil: all
}

// A Posture is added to a launch.
type Posture struct {
	Args  []string
	Env   []string
	Files map[string]string
}

// Facts are what the rows expect of a runtime. A change of one of them, for
// better or worse, fails its row.
type Facts struct {
	Agent   string // agentInfo.name
	Version string // agentInfo.version; empty: the pin's

	Says    string // the text of a turn; empty: the model's greeting
	Tool    string // the kind of a shell call; empty: execute
	NoModel bool   // it is scripted and asks no model

	Refused  Outcome // how a turn ends whose permission was refused
	Resigned bool    // after a refusal the model is not asked again
	Broken   Outcome // how a turn ends whose model answers HTTP 400

	Banner   bool // the text of the first turn may hold a banner
	Hasty    bool // answers the prompt behind a cancelled or failed turn at once; its text comes in the turn behind
	Buffers  bool // shows the text of a message only when it is complete
	Close    bool // advertises session/close
	LongLine int  // at least one line is this long, in a session with one turn

	Exact bool // token usage is measured

	// Processes that outlive Stop, each by a piece of its command line: they left
	// the runtime's process group. After a stop in idle, and with a command running.
	Escapes, EscapesBusy []string
	// MayEscapeBusy are those of a runtime that kills its commands at the end of a
	// session, unless it is gone itself before it comes to it.
	MayEscapeBusy []string

	// Not says why a row does not apply.
	Not map[string]string
}

// An Outcome is the end of a turn: turn_completed and no error, or else.
type Outcome struct{ Reason, Kind, Text string }

var completed = Outcome{Reason: "turn_completed"}

func failed(kind, text string) Outcome { return Outcome{"turn_failed", kind, text} }

// runs reports whether a row is run at all.
func (r Runtime) runs(row string) bool { return r.Only == nil || slices.Contains(r.Only, row) }

// pinName returns the line of pins.txt that the runtime is installed by.
func (r Runtime) pinName() string {
	if r.Pin != "" {
		return r.Pin
	}
	return r.Name
}

// A Launch is a runtime ready to be started.
type Launch struct {
	Argv []string
	Env  []string
}

// prepare writes the files of a posture into home and returns the launch.
// node is the folder of the node binary: the same for every runtime, whatever
// the machine has.
func (r Runtime) prepare(p Posture, dir, node, home, url string) (Launch, error) {
	fill := strings.NewReplacer("{dir}", dir, "{home}", home, "{url}", url).Replace
	l := Launch{Env: []string{
		"PATH=" + strings.Join([]string{node, filepath.Join(dir, "node_modules", ".bin"), os.Getenv("PATH")}, string(os.PathListSeparator)),
		"HOME=" + home, "TMPDIR=" + home, "TERM=dumb", "LANG=C.UTF-8", "NO_COLOR=1", "NO_BROWSER=1",
		// Whatever a runtime wants of the world, it gets nothing: only the model,
		// which is no https, can be reached.
		"HTTPS_PROXY=http://127.0.0.1:9", "https_proxy=http://127.0.0.1:9", "NO_PROXY=127.0.0.1,localhost", "no_proxy=127.0.0.1,localhost",
	}}
	for _, a := range slices.Concat(r.Argv, p.Args) {
		l.Argv = append(l.Argv, fill(a))
	}
	for _, e := range slices.Concat(r.Env, p.Env) {
		l.Env = append(l.Env, fill(e))
	}
	files := maps.Clone(r.Files)
	if files == nil {
		files = map[string]string{}
	}
	maps.Copy(files, p.Files)
	for name, text := range files {
		name = filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
			return Launch{}, err
		}
		if err := os.WriteFile(name, []byte(fill(text)), 0o600); err != nil {
			return Launch{}, err
		}
	}
	return l, nil
}

// bin returns the argv of a command of the package.
func bin(name string, args ...string) []string {
	return append([]string{"{dir}/node_modules/.bin/" + name}, args...)
}
