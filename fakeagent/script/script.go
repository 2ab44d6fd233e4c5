// Package script is a pretend runtime that speaks the Agent Client Protocol.
//
//	fakeagent [-plain]             a friendly runtime
//	fakeagent -scenario FILE       plays a scenario: the steps are in scenario.go
//	fakeagent -replay FILE         plays the runtime's side of a transcript
//	fakeagent -wrap ARG...         runs fakeagent ARG... in a child, as a
//	                               launcher script does, and does nothing else
//
// A scenario ends with status 0, with the one of its exit step, with 8 when the
// client went away early, or with 9 when a step failed, which standard error
// names. The file that FAKEAGENT_REPORT names receives a line for each step
// begun and one for the end.
package script

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

// Exit statuses of Main.
const (
	statusUsage  = 2
	statusCrash  = 3 // the friendly runtime was asked to crash
	statusGone   = 8
	statusFailed = 9
)

// errGone says that the client went away while more was expected of it.
var errGone = errors.New("the client went away")

// Main runs the fake runtime and returns its exit status. It may return with a
// goroutine still reading stdin: the caller exits.
func Main(args []string, stdin io.ReadCloser, stdout, stderr io.WriteCloser) int {
	catchBrokenPipe()
	if len(args) > 0 && args[0] == "-wrap" {
		return wrap(args[1:], stdin, stdout, stderr)
	}
	if len(args) == 2 && args[0] == "-child" {
		return helperMain(args[1], stdout, stderr)
	}
	flags := flag.NewFlagSet("fakeagent", flag.ContinueOnError)
	flags.SetOutput(stderr)
	plain := flags.Bool("plain", false, "without the friendly runtime's harmless surprises")
	scenarioFile := flags.String("scenario", "", "play this scenario `FILE`")
	replayFile := flags.String("replay", "", "play the runtime's side of this transcript `FILE`")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return statusUsage
	}
	if flags.NArg() > 0 || (*scenarioFile != "" && *replayFile != "") {
		complain(stderr, "fakeagent: one of -scenario and -replay, and no arguments")
		return statusUsage
	}
	stdin = interruptible(stdin)
	if *replayFile != "" {
		t, err := loadTranscript(*replayFile)
		if err != nil {
			complain(stderr, "fakeagent: %v", err)
			return statusUsage
		}
		status, _ := t.Replay(stdin, stdout, stderr)
		return status
	}
	w := &wire{in: newInbox(stdin), out: stdout, err: stderr}
	if *scenarioFile != "" {
		sc, err := loadScenario(*scenarioFile)
		if err != nil {
			complain(stderr, "fakeagent: %v", err)
			return statusUsage
		}
		return newPlayer(w, sc).run()
	}
	return newFriendly(w, !*plain).run()
}

// complain writes a line for a human. That nobody may be there to read it is no
// reason to fail.
func complain(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format+"\n", args...)
}

// wire is the connection to the client.
type wire struct {
	in  *inbox
	out io.WriteCloser
	err io.WriteCloser
}

// write sends bytes as they are. Whatever keeps them from going out means that
// the client is gone, unless the scenario closed the stream itself.
func (w *wire) write(b []byte) error {
	if _, err := w.out.Write(b); err != nil {
		if errors.Is(err, os.ErrClosed) {
			return err
		}
		return errGone
	}
	return nil
}

// reply answers a request; body is `"result":...` or `"error":...`.
func (w *wire) reply(id []byte, body string) error {
	return w.write(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,%s}`+"\n", id, body))
}

const noSuchMethod = `"error":{"code":-32601,"message":"Method not found"}`
