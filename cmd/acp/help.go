package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
)

func help(args []string) int {
	switch {
	case len(args) == 0, asksHelp(args):
		return show(helpText)
	case len(args) == 1 && args[0] == "run":
		return show(helpRun())
	case len(args) == 1 && args[0] == "probe":
		return show(helpProbe())
	}
	return wrongUsage("acp", errors.New("there is help for run and for probe"))
}

func asksHelp(args []string) bool {
	return len(args) == 1 && slices.Contains([]string{"-h", "-help", "--help"}, args[0])
}

const helpText = `acp drives a coding-agent runtime that speaks the Agent Client Protocol.

  acp run [flags] [PROMPT] [-- COMMAND [ARG...]]   drive a session
  acp probe [flags] -- COMMAND [ARG...]            report what a runtime offers
  acp version                                      print version and revision

Without a COMMAND, run drives a pretend runtime built into this program.

  acp run "hello"
  acp run "Fix the failing test" -- gemini --acp
  acp probe -- gemini --acp

"acp help run" and "acp help probe" list the flags.
`

const helpCommon = `  -cwd DIR                  the runtime's workspace; default: the current directory
  -mcp-config FILE          MCP servers for the session, as {"mcpServers": {...}}
  -read-timeout DURATION    bound of each wait for the runtime; default 30s
  -handshake-timeout DURATION
                            bound of initialize; default: the larger of
                            -read-timeout and 60s
  -stop-grace DURATION      time the runtime gets to end by itself; default 5s
  -turn-timeout DURATION    cancel a turn that takes longer
  -log-level LEVEL          debug, info, warn or error; default warn
  -log-file FILE            append the log to FILE; default: standard error
`

func helpRun() string {
	return `usage: acp run [flags] [PROMPT] [-- COMMAND [ARG...]]

Starts COMMAND, a runtime that speaks the Agent Client Protocol on its standard
input and output, sends it the prompts, one turn each, shows what it answers and
stops it. Without a COMMAND a pretend runtime answers; slow, long N, permission,
ask, refuse, fail or crash in a prompt is what it then does. Everything after the
first -- is the command; flags may also follow the prompt.

Permission requests are refused: nobody is there to grant them. That is not a
sandbox, since a runtime may act without asking.

  -prompt TEXT              a prompt; repeat it for further turns. "-", or no
                            prompt at all, reads standard input as one prompt
  -keep-going               send later prompts after a turn that did not complete
  -resume ID                continue an earlier session where the runtime can
  -stall-timeout DURATION   cancel a turn that shows no sign of life for so long
  -max-line BYTES           bound of a line of the runtime; default 10 MiB
  -verify                   a session that only verifies credentials: no MCP
                            servers, deleted at its end where the runtime can
  -ssh HOST                 start COMMAND on HOST with ssh; -cwd must exist there
                            and here
  -ssh-strict MODE          host keys: accept-new (default), yes or no
  -ssh-pass-env NAME        pass this variable on to HOST if it is set and not
                            blank; repeatable
  -json                     one JSON object a line on standard output
  -record FILE              write a transcript of the wire to FILE
` + helpCommon + `
Ctrl-C cancels the turn and stops the runtime; a second one kills it. During the
start only its grace ends it; a third one then leaves it behind.

Exit status: 0 every turn completed, 1 a turn or the session failed, 2 wrong
usage, 130 interrupted.

  acp run "hello"
  acp run "List the open TODOs" -- gemini --acp
  acp run -prompt "Write a test" -prompt "Make it pass" -keep-going -- opencode acp
  acp run -json -turn-timeout 10m - < task.md -- claude-agent-acp
  acp run -record bug.jsonl "hello" -- codex-acp
  acp run -ssh build1 -ssh-pass-env API_KEY "hello" -- gemini --acp
`
}

func helpProbe() string {
	return `usage: acp probe [flags] -- COMMAND [ARG...]

Starts COMMAND a few times and reports what an orchestrator would get from it:
whether it starts and how fast, its name and version, capabilities and the
reason of each gap, the routes it offers, its logins, and what it leaves running.
It spends no model call unless -prompt asks for a turn.

  -prompt TEXT              run one turn with this prompt, too; -turn-timeout is
                            10m if not given
  -json                     the report as one JSON object
` + helpCommon + `
Exit status: 0 fit, 1 not fit (the last line says why), 2 wrong usage, 130
interrupted.

  acp probe -- gemini --acp
  acp probe -json -prompt "Say hello" -- opencode acp
`
}

// versionLine names the module's version and the revision it was built from.
func versionLine() string {
	version, revision := "devel", "unknown"
	if bi, ok := debug.ReadBuildInfo(); ok {
		if v := bi.Main.Version; v != "" && v != "(devel)" {
			version = v
		}
		modified := ""
		for _, kv := range bi.Settings {
			switch {
			case kv.Key == "vcs.revision":
				revision = kv.Value
			case kv.Key == "vcs.modified" && kv.Value == "true":
				modified = ", modified"
			}
		}
		revision += modified
	}
	return fmt.Sprintf("acp %s (revision %s) %s %s/%s", version, revision,
		runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
