package model

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// What every answer says it cost. A test that finds other figures knows that
// something was lost, added or counted twice on the way.
const (
	InputTokens   = 1111
	OutputTokens  = 222
	CachedTokens  = 33
	ThoughtTokens = 44
)

// Texts the model streams.
const (
	Greeting  = "Hello from the pretend model."
	Closing   = "The tool step is over."
	Thought   = "A pretend thought."
	Announce  = "I will use a tool. "
	BigLength = 300_000
)

// toolDef is a tool that the runtime offers.
type toolDef struct {
	name   string
	params schema
	free   bool // takes free text, no JSON object
	local  bool // the built-in shell of the OpenAI responses wire
}

// schema is the part of a JSON schema that is needed to fill in arguments.
type schema struct {
	Type       any               `json:"type"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Enum       []any             `json:"enum"`
	Minimum    any               `json:"minimum"`
}

func (s schema) kind() string {
	switch t := s.Type.(type) {
	case string:
		return strings.ToLower(t)
	case []any:
		if len(t) > 0 {
			k, _ := t[0].(string)
			return strings.ToLower(k)
		}
	}
	return ""
}

// ask is a model request, whatever wire it came over.
type ask struct {
	model     string
	prompt    string // the newest user text with a marker
	afterTool bool   // the newest entry is a tool's outcome
	stream    bool
	tools     []toolDef
	form      *schema // the answer must be JSON of this form
}

// reply is what the model does.
type reply struct {
	status  int // not 0: an HTTP error
	chunks  []string
	pause   time.Duration // between chunks
	thought string
	calls   []call
	cut     bool // stopped for length
}

type call struct {
	tool toolDef
	args map[string]any
	text string // for a tool that takes free text
}

var markerForm = regexp.MustCompile(`\[\[([a-z]+)(?: ([^\]]*))?\]\]`)

// marker returns the last marker of a text: [[word]] or [[word argument]].
func marker(text string) (word, arg string, ok bool) {
	all := markerForm.FindAllStringSubmatch(text, -1)
	if len(all) == 0 {
		return "", "", false
	}
	last := all[len(all)-1]
	return last[1], last[2], true
}

// decide maps a request to what the model does.
//
//	[[text]]         the greeting, in pieces
//	[[think]]        a thought, then the greeting
//	[[shell CMD]]    calls the runtime's shell tool
//	[[ask CMD]]      the same, and asks to leave the sandbox where the tool has one
//	[[write PATH]]   calls the runtime's tool for writing a file
//	[[mcp TOOL]]     calls the offered tool whose name ends in TOOL
//	[[slow]]         a quarter of a second between 240 pieces; [[slow N]]: N pieces
//	[[big]]          one piece of BigLength characters
//	[[http STATUS]]  every request fails with that status
//	[[empty]]        an answer without text
//	[[cut]]          the greeting, stopped for length
func decide(a ask) reply {
	word, arg, _ := marker(a.prompt)
	if word == "http" {
		if n, err := strconv.Atoi(arg); err == nil {
			return reply{status: n}
		}
	}
	switch {
	case a.form != nil:
		b, err := json.Marshal(fill(*a.form))
		if err != nil {
			return reply{status: 500}
		}
		return reply{chunks: []string{string(b)}}
	case len(a.tools) == 0:
		// A side task of the runtime, such as a title for the session.
		return reply{chunks: []string{"Pretend", " title"}}
	case a.afterTool:
		return reply{chunks: pieces(Closing)}
	}
	switch word {
	case "think":
		return reply{chunks: pieces(Greeting), thought: Thought}
	case "shell", "ask":
		return useTool(a.tools, shellNames, func(t toolDef) call { return shellCall(t, arg, word == "ask") })
	case "write":
		return useTool(a.tools, writeNames, func(t toolDef) call { return writeCall(t, arg) })
	case "mcp":
		return mcpReply(a.tools, arg)
	case "slow":
		n, err := strconv.Atoi(arg)
		if err != nil {
			n = 240
		}
		ticks := make([]string, n)
		for i := range ticks {
			ticks[i] = "tick" + strconv.Itoa(i) + " "
		}
		return reply{chunks: ticks, pause: 250 * time.Millisecond}
	case "big":
		return reply{chunks: []string{strings.Repeat("B", BigLength)}}
	case "empty":
		return reply{}
	case "cut":
		return reply{chunks: pieces(Greeting), cut: true}
	}
	return reply{chunks: pieces(Greeting)}
}

// pieces splits a text behind each word, so that it streams in several chunks.
func pieces(s string) []string { return strings.SplitAfter(s, " ") }

var (
	shellNames = []string{"run_shell_command", "bash", "Bash", "exec_command", "shell_command", "shell", "local_shell",
		"execute_command", "run_commands", "Execute", "terminal"}
	writeNames = []string{"write_file", "write", "Write", "write_to_file", "create_file", "Create", "create", "editor", "apply_patch", "ApplyPatch"}
)

func useTool(tools []toolDef, names []string, make func(toolDef) call) reply {
	for _, name := range names {
		for _, t := range tools {
			if t.name == name {
				return reply{chunks: []string{Announce}, calls: []call{make(t)}}
			}
		}
	}
	return reply{chunks: []string{"no such tool among: ", toolNames(tools)}}
}

func mcpReply(tools []toolDef, name string) reply {
	for _, t := range tools {
		if name != "" && strings.HasSuffix(t.name, name) {
			c := call{tool: t, args: required(t.params)}
			c.args["text"] = "ping"
			return reply{chunks: []string{Announce}, calls: []call{c}}
		}
	}
	return reply{chunks: []string{"no such tool among: ", toolNames(tools)}}
}

func toolNames(tools []toolDef) string {
	names := make([]string, 0, len(tools))
	for _, t := range tools {
		names = append(names, t.name)
	}
	return strings.Join(names, " ")
}

func shellCall(t toolDef, command string, escalate bool) call {
	args := required(t.params)
	for _, name := range []string{"command", "cmd", "commands"} {
		p, ok := t.params.Properties[name]
		switch {
		case !ok:
		case p.kind() != "array":
			args[name] = command
		case name == "commands":
			args[name] = []string{command}
		default:
			args[name] = []string{"bash", "-lc", command}
		}
	}
	if len(t.params.Properties) == 0 {
		args["command"] = command
	}
	if _, ok := t.params.Properties["sandbox_permissions"]; ok && escalate {
		args["sandbox_permissions"] = "require_escalated"
		args["justification"] = "the test needs it"
	}
	return call{tool: t, args: args}
}

func writeCall(t toolDef, path string) call {
	const content = "written by the pretend model\n"
	base := path[strings.LastIndex(path, "/")+1:]
	patch := "*** Begin Patch\n*** Add File: " + base + "\n+" + content + "*** End Patch\n"
	args := required(t.params)
	for name := range t.params.Properties {
		switch strings.ToLower(name) {
		case "file_path", "filepath", "path", "absolute_path":
			args[name] = path
		case "content", "contents", "file_text", "text":
			args[name] = content
		case "input", "patch", "patchtext":
			args[name] = patch
		}
	}
	return call{tool: t, args: args, text: patch}
}

// required fills in the properties that a tool insists on.
func required(s schema) map[string]any {
	args := map[string]any{}
	for _, name := range s.Required {
		args[name] = fill(s.Properties[name])
	}
	return args
}

// fill makes up a value that satisfies a schema.
func fill(s schema) any {
	if len(s.Enum) > 0 {
		return s.Enum[0]
	}
	switch s.kind() {
	case "string":
		return "probe"
	case "number", "integer":
		if s.Minimum != nil {
			return s.Minimum
		}
		return 0
	case "boolean":
		return false
	case "array":
		return []any{}
	}
	obj := map[string]any{}
	for name, p := range s.Properties {
		obj[name] = fill(p)
	}
	return obj
}
