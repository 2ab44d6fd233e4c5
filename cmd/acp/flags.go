package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sortie-ai/acp"
)

// settings is what the command line says.
type settings struct {
	command []string // what follows the first --; empty: the embedded runtime
	prompts []string

	cwd        string
	resume     string
	mcpConfig  string
	ssh        string
	sshStrict  string
	sshPassEnv []string

	readTimeout      time.Duration
	handshakeTimeout time.Duration
	stopGrace        time.Duration
	turnTimeout      time.Duration
	stallTimeout     time.Duration

	maxLine   int
	verify    bool
	keepGoing bool
	json      bool
	record    string
	logFile   string
	logLevel  slog.Level
}

// parseRun parses the arguments of `acp run`.
func parseRun(args []string) (*settings, error) {
	s := &settings{}
	words := 0
	word := func(text string) error {
		if words++; words > 1 {
			return fmt.Errorf("%q is a second prompt: quote the prompt, and write the runtime's command after --", text)
		}
		s.prompts = append(s.prompts, text)
		return nil
	}
	if err := s.parse(runFlags(s), args, word); err != nil {
		return nil, err
	}
	return s, s.checkRun()
}

func (s *settings) checkRun() error {
	switch {
	case s.ssh != "" && len(s.command) == 0:
		return errors.New("-ssh needs the runtime's command after --")
	case s.ssh == "" && (s.sshStrict != "" || s.sshPassEnv != nil):
		return errors.New("-ssh-strict and -ssh-pass-env need -ssh")
	case !slices.Contains([]string{"", "accept-new", "yes", "no"}, s.sshStrict):
		return fmt.Errorf("-ssh-strict is accept-new, yes or no, not %q", s.sshStrict)
	case slices.Index(s.prompts, "-") != lastIndex(s.prompts, "-"):
		return errors.New("standard input can be the prompt of one turn only")
	case slices.ContainsFunc(s.prompts, blank):
		return errors.New("the prompt is empty")
	}
	return nil
}

// parseProbe parses the arguments of `acp probe`.
func parseProbe(args []string) (*settings, error) {
	s := &settings{}
	word := func(text string) error {
		return fmt.Errorf("unexpected %q: write the runtime's command after --", text)
	}
	fs := probeFlags(s)
	s.turnTimeout = 10 * time.Minute // a report comes to an end
	if err := s.parse(fs, args, word); err != nil {
		return nil, err
	}
	if len(s.command) == 0 {
		return nil, errors.New("write the runtime's command after --")
	}
	switch {
	case len(s.prompts) > 1:
		return nil, errors.New("one prompt is enough")
	case slices.ContainsFunc(s.prompts, blank):
		return nil, errors.New("the prompt is empty")
	}
	return s, nil
}

func runFlags(s *settings) *flag.FlagSet {
	fs := probeFlags(s)
	fs.StringVar(&s.resume, "resume", "", "")
	fs.StringVar(&s.ssh, "ssh", "", "")
	fs.StringVar(&s.sshStrict, "ssh-strict", "", "")
	fs.Var((*list)(&s.sshPassEnv), "ssh-pass-env", "")
	fs.DurationVar(&s.stallTimeout, "stall-timeout", 0, "")
	fs.IntVar(&s.maxLine, "max-line", 0, "")
	fs.BoolVar(&s.verify, "verify", false, "")
	fs.BoolVar(&s.keepGoing, "keep-going", false, "")
	fs.StringVar(&s.record, "record", "", "")
	return fs
}

// probeFlags defines what both commands take. The texts of the flags stand in
// the help, so that they read as one page.
func probeFlags(s *settings) *flag.FlagSet {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Var((*list)(&s.prompts), "prompt", "")
	fs.StringVar(&s.cwd, "cwd", ".", "")
	fs.StringVar(&s.mcpConfig, "mcp-config", "", "")
	fs.DurationVar(&s.readTimeout, "read-timeout", 0, "")
	fs.DurationVar(&s.handshakeTimeout, "handshake-timeout", 0, "")
	fs.DurationVar(&s.stopGrace, "stop-grace", 0, "")
	fs.DurationVar(&s.turnTimeout, "turn-timeout", 0, "")
	fs.BoolVar(&s.json, "json", false, "")
	fs.StringVar(&s.logFile, "log-file", "", "")
	fs.TextVar(&s.logLevel, "log-level", slog.LevelWarn, "")
	return fs
}

// A list is a flag that can be repeated.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

// Set adds a value.
func (l *list) Set(s string) error {
	*l = append(*l, s)
	return nil
}

// parse splits off the command, then takes flags and words in any order.
func (s *settings) parse(fs *flag.FlagSet, args []string, word func(string) error) error {
	if i := slices.Index(args, "--"); i >= 0 {
		args, s.command = args[:i], args[i+1:]
		if len(s.command) == 0 {
			return errors.New("no command follows --")
		}
	}
	for {
		if err := fs.Parse(args); err != nil {
			return err
		}
		if fs.NArg() == 0 {
			return valid(fs)
		}
		if err := word(fs.Arg(0)); err != nil {
			return err
		}
		args = fs.Args()[1:]
	}
}

// valid refuses values that can only be a slip, an unset shell variable above
// all. The package itself judges an empty -cwd.
func valid(fs *flag.FlagSet) error {
	var err error
	fs.Visit(func(f *flag.Flag) {
		v := f.Value.String()
		switch f.Name {
		case "cwd", "prompt", "ssh-pass-env":
		default:
			if v == "" || strings.HasPrefix(v, "-") {
				err = fmt.Errorf("-%s cannot be %q", f.Name, v)
			}
		}
	})
	return err
}

// config is the session's configuration, without log and transcript.
func (s *settings) config() (acp.Config, error) {
	c := acp.Config{
		Argv:             s.command,
		Resume:           s.resume,
		MCPConfig:        s.mcpConfig,
		ReadTimeout:      s.readTimeout,
		HandshakeTimeout: s.handshakeTimeout,
		StopGrace:        s.stopGrace,
		Verify:           s.verify,
		MaxLine:          s.maxLine,
		ChunkText:        true,
	}
	if len(s.command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return c, err
		}
		c.Argv = []string{self, embedded, "-plain"}
	}
	if s.ssh != "" {
		c.SSH = &acp.SSH{Host: s.ssh, StrictHostKeyChecking: s.sshStrict, PassEnv: s.sshPassEnv}
	}
	var err error
	c.Workspace, err = workspace(s.cwd)
	return c, err
}

// workspace makes dir absolute. The directory we are in may have been entered
// through a symbolic link, which is no fault of the caller's; one that dir
// itself names is left for the package to refuse.
func workspace(dir string) (string, error) {
	if dir == "" || filepath.IsAbs(dir) {
		return dir, nil
	}
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if here, err = filepath.EvalSymlinks(here); err != nil {
		return "", err
	}
	return filepath.Join(here, dir), nil
}

// readPrompts replaces "-" by what standard input holds.
func readPrompts(prompts []string, stdin *os.File) ([]string, error) {
	if len(prompts) == 0 {
		if _, _, ok := terminalSize(stdin); ok {
			return nil, errors.New("no prompt: give one as an argument, with -prompt or on standard input")
		}
		prompts = []string{"-"}
	}
	i := slices.Index(prompts, "-")
	if i < 0 {
		return prompts, nil
	}
	b, err := io.ReadAll(stdin)
	if err != nil {
		return nil, err
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if blank(text) {
		return nil, errors.New("no prompt: standard input is empty")
	}
	prompts = slices.Clone(prompts)
	prompts[i] = text
	return prompts, nil
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

func lastIndex(words []string, s string) int {
	for i := len(words) - 1; i >= 0; i-- {
		if words[i] == s {
			return i
		}
	}
	return -1
}
