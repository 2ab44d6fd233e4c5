package interop

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	document     = "../docs/INTEROP.md"
	sightingFile = "verdicts.json"
)

// A sighting is the newest verdict of a row. verdicts.json keeps them, so that
// some rows can be run again and the document still tells of all.
type sighting struct {
	Version string // of the counterpart; a verdict on another is not shown
	Day     string
	OK      bool
}

type sightings map[string]map[string]sighting // by subject and row

// of returns a verdict on the version that is pinned now.
func (s sightings) of(subject, row string) (sighting, bool) {
	x, ok := s[subject][row]
	return x, ok && x.Version == versionOf(subject)
}

// updateDocument adds the verdicts of this run to the earlier ones and writes
// both files. A row that was skipped keeps its earlier verdict.
func updateDocument(v *verdicts) error {
	all := sightings{}
	old, err := os.ReadFile(sightingFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		if err := json.Unmarshal(old, &all); err != nil {
			return err
		}
	}
	for _, x := range v.sorted() {
		if x.word == "-" {
			continue
		}
		if all[x.subject] == nil {
			all[x.subject] = map[string]sighting{}
		}
		all[x.subject][x.row] = sighting{versionOf(x.subject), time.Now().UTC().Format(time.DateOnly), x.word == "ok"}
	}
	b, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(sightingFile, append(b, '\n'), 0o600), os.WriteFile(document, []byte(all.markdown()), 0o600))
}

// versionOf names what is behind a subject of the table.
func versionOf(subject string) string {
	for _, rt := range Runtimes() {
		if rt.Name == subject {
			return strings.Join(Pins()[rt.pinName()].Packages, ", ")
		}
	}
	switch subject {
	case "schema":
		return strings.Join(Pins()["sdk"].Packages, ", ")
	case "coder's agent":
		return module("github.com/coder/acp-go-sdk")
	case sshdSubject:
		out, _ := exec.Command("ssh", "-V").CombinedOutput()
		name, _, _ := strings.Cut(string(out), ",")
		return strings.TrimSpace(name)
	}
	return ""
}

// module returns path@version of a module that go.mod requires.
func module(path string) string {
	mod, _ := os.ReadFile("go.mod")
	for line := range strings.Lines(string(mod)) {
		if words := strings.Fields(line); len(words) == 2 && words[0] == path {
			return path + "@" + words[1]
		}
	}
	return path
}

const docHead = "# Real counterparts\n\n" +
	"Written by `interop/run update`. Every verdict below is of a row that was run against\n" +
	"the real thing, of the version and on the day that stand beside it, on Linux, with\n" +
	"%s and a pretend model on the loopback that says what it costs. A runtime's\n" +
	"day is that of its oldest verdict. A dash is a row that does not apply, with its reason\n" +
	"below the table; an empty cell was not seen with this version. In the columns *refuse*\n" +
	"and *error* stands how the turn ended, in *usage* whether exact figures were told or none.\n" +
	"The runtimes named *auto* are Gemini CLI with its default model, which asks a router first;\n" +
	"they run the rows of *usage* alone.\n\n"

const docTail = "\nThe rows *mcp* deliver a server built with %s. In the rows of sshd Gemini CLI\n" +
	"is on the far side of an OpenSSH server on the loopback, with its environment in passed variables:\n" +
	"two turns, and nothing left; stopped in mid turn it still runs over there when the stop is over.\n\n" +
	"The Windows build is run under Wine by `.ci/wine`: `.ci/wine-tests` names the tests, `.ci/wine-skips`\n" +
	"those that cannot run there, and why. `.ci/run` runs that and the smaller set, `interop/run ci`:\n" +
	"%s, schema, coder's agent, sshd, *mcp*, and the quicker rows of *usage*.\n"

// markdown returns the document.
func (s sightings) markdown() string {
	var d strings.Builder
	fmt.Fprintf(&d, docHead, strings.Join(Pins()["node22"].Packages, ", "))
	for _, r := range rows() {
		fmt.Fprintf(&d, "- **%s**: %s\n", r.name, r.what)
	}
	d.WriteString("\n| runtime | version | day |")
	for _, r := range rows() {
		d.WriteString(" " + r.name + " |")
	}
	d.WriteString(" left behind |\n|" + strings.Repeat("---|", len(rows())+4) + "\n")
	var reasons, smaller []string
	for _, rt := range Runtimes() {
		fmt.Fprintf(&d, "| %s | %s | %s |", rt.Name, versionOf(rt.Name), s.day(rt))
		for _, r := range rows() {
			d.WriteString(" " + s.cell(rt, r.name) + " |")
			if why := rt.Facts.Not[r.name]; why != "" {
				reasons = append(reasons, fmt.Sprintf("- %s, %s: %s\n", rt.Name, r.name, why))
			}
		}
		d.WriteString(" " + s.escapes(rt) + " |\n")
		if rt.CI {
			smaller = append(smaller, rt.Name)
		}
	}
	d.WriteString("\nRows that do not apply:\n\n" + strings.Join(reasons, ""))
	d.WriteString("\n| counterpart | version | day | row | verdict |\n|---|---|---|---|---|\n")
	for _, subject := range slices.Sorted(maps.Keys(s)) {
		for _, name := range slices.Sorted(maps.Keys(s[subject])) {
			x, seen := s.of(subject, name)
			if seen && !slices.ContainsFunc(rows(), func(r row) bool { return r.name == name }) {
				fmt.Fprintf(&d, "| %s | %s | %s | %s | %s |\n", subject, x.Version, x.Day, name, x.word())
			}
		}
	}
	fmt.Fprintf(&d, docTail, module("github.com/modelcontextprotocol/go-sdk"), strings.Join(smaller, ", "))
	return d.String()
}

func (x sighting) word() string {
	if x.OK {
		return "ok"
	}
	return "FAIL"
}

// cell returns the table's cell for a row of a runtime.
func (s sightings) cell(rt Runtime, row string) string {
	x, seen := s.of(rt.Name, row)
	switch {
	case !rt.runs(row):
		return ""
	case rt.Facts.Not[row] != "":
		return "-"
	case !seen:
		return ""
	case x.OK && row == "refuse":
		return rt.Facts.Refused.String()
	case x.OK && row == "error":
		return rt.Facts.Broken.String()
	case x.OK && row == "usage" && rt.Facts.Exact:
		return "exact"
	case x.OK && row == "usage", x.OK && row == "close" && !rt.Facts.Close:
		return "none"
	}
	return x.word()
}

// day returns the day of a runtime's oldest verdict that is shown.
func (s sightings) day(rt Runtime) string {
	oldest := ""
	for _, r := range rows() {
		if x, seen := s.of(rt.Name, r.name); seen && rt.runs(r.name) && (oldest == "" || x.Day < oldest) {
			oldest = x.Day
		}
	}
	return oldest
}

// escapes says what outlives a stop, as the rows stop and busy showed.
func (s sightings) escapes(rt Runtime) string {
	for _, row := range []string{"stop", "busy"} {
		if x, seen := s.of(rt.Name, row); rt.Facts.Not[row] == "" && !(seen && x.OK) {
			return ""
		}
	}
	called := func(name string) string {
		if name == stubborn {
			return "a command that ignores SIGTERM"
		}
		return "`" + name + "`"
	}
	var all []string
	for _, name := range rt.Facts.Escapes {
		all = append(all, called(name))
	}
	for _, name := range rt.Facts.EscapesBusy {
		if !slices.Contains(rt.Facts.Escapes, name) {
			all = append(all, called(name))
		}
	}
	for _, name := range rt.Facts.MayEscapeBusy {
		all = append(all, "at times "+called(name))
	}
	if all == nil {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

func (o Outcome) String() string {
	if o.Kind == "" || o.Kind == o.Reason {
		return "`" + o.Reason + "`"
	}
	return "`" + o.Reason + "`, `" + o.Kind + "`"
}
