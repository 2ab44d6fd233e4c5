// Command acp drives a coding-agent runtime over the Agent Client Protocol,
// from a terminal or a script.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/sortie-ai/acp/fakeagent/script"
)

// The exit statuses.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// embedded is the first argument by which this program, started by itself, is
// the runtime that `acp run` drives when no command is given.
const embedded = "embedded-runtime"

func main() { os.Exit(command(os.Args[1:])) }

func command(args []string) int {
	if len(args) == 0 {
		return wrongUsage("acp", errors.New("say what to do: run, probe or version"))
	}
	switch name, rest := args[0], args[1:]; name {
	case embedded:
		return script.Main(rest, os.Stdin, os.Stdout, os.Stderr)
	case "run":
		return start("acp run", rest, parseRun, helpRun, run)
	case "probe":
		return start("acp probe", rest, parseProbe, helpProbe, probe)
	case "version", "-version", "--version":
		switch {
		case len(rest) == 0:
			return show(versionLine() + "\n")
		case asksHelp(rest):
			return show(helpText)
		}
		return wrongUsage("acp", errors.New("version takes no arguments"))
	case "help", "-h", "-help", "--help":
		return help(rest)
	default:
		return wrongUsage("acp", fmt.Errorf("there is no command %q: run, probe or version", name))
	}
}

// start parses the arguments of one command and carries it out.
func start(name string, args []string, parse func([]string) (*settings, error), help func() string, do func(*settings) int) int {
	s, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return show(help())
	}
	if err != nil {
		return wrongUsage(name, err)
	}
	return do(s)
}

func wrongUsage(name string, err error) int {
	complain(name, fmt.Errorf("%w (try %s -help)", err, name))
	return exitUsage
}

// complain writes one line to standard error.
func complain(name string, err error) {
	_, _ = fmt.Fprintf(os.Stderr, "%s: %s\n", name, oneLine(err.Error()))
}

func show(text string) int {
	if _, err := io.WriteString(os.Stdout, text); err != nil {
		complain("acp", err)
		return exitFailed
	}
	return exitOK
}
