package acp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	maxMCPFile = 10 << 20
	// minSecret is the least length of a value that secretTexts names: removing
	// "1" or "true" everywhere would leave nothing of a transcript.
	minSecret     = 6
	reservedMCP   = "sortie-tools"
	keyMCPServers = "mcpServers"
)

// mcpServer is one enabled server of an MCP configuration.
type mcpServer struct {
	name         string
	kind         string // stdio, http or sse
	command, url string // one of them is set
	args         []string
	env, headers []mcpPair // sorted by name
	unknown      []string  // keys this package does not know, sorted
}

type mcpPair struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// mcpFile is an MCP configuration with nothing of it lost. Keys are exact:
// encoding/json matches the fields of a struct in any case.
type mcpFile struct {
	top, servers map[string]json.RawMessage
}

// parseMCP reads the servers of an MCP configuration in name order, without
// those that are disabled. Its errors hold no value of the file, and so never
// the text of an encoding/json error, which quotes what it met.
func parseMCP(path string) ([]mcpServer, *Error) {
	f, e := readMCP(path)
	if e != nil {
		return nil, e
	}
	var servers []mcpServer
	for _, name := range slices.Sorted(maps.Keys(f.servers)) {
		s, off, err := parseMCPServer(name, f.servers[name])
		if err != nil {
			return nil, fail(ErrResponseError, fmt.Sprintf(
				"the MCP configuration %s is malformed: server %.200q: %v", path, name, err), nil)
		}
		if !off {
			servers = append(servers, s)
		}
	}
	return servers, nil
}

func readMCP(path string) (*mcpFile, *Error) {
	data, err := readMCPBytes(path)
	if err != nil {
		return nil, fail(ErrResponseError, "the MCP configuration cannot be read", err)
	}
	malformed := func(what string) *Error {
		return fail(ErrResponseError, fmt.Sprintf("the MCP configuration %s %s", path, what), nil)
	}
	if !json.Valid(data) {
		return nil, malformed("is not valid JSON")
	}
	f := &mcpFile{servers: map[string]json.RawMessage{}}
	if json.Unmarshal(data, &f.top) != nil || f.top == nil {
		return nil, malformed("is not an object")
	}
	if !field(f.top, keyMCPServers, &f.servers) {
		return nil, malformed("is malformed: mcpServers is not an object")
	}
	return f, nil
}

// readMCPBytes reads a regular file: opening a pipe would wait without a bound.
func readMCPBytes(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path) // #nosec G304 -- the path is the operator's own setting
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxMCPFile+1))
	if err == nil && len(data) > maxMCPFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxMCPFile)
	}
	return data, err
}

// field decodes m[key] and reports whether it had dst's type. An absent or
// null field leaves dst as it is.
func field(m map[string]json.RawMessage, key string, dst any) bool {
	raw, ok := m[key]
	return !ok || string(raw) == "null" || json.Unmarshal(raw, dst) == nil
}

// parseMCPServer also reports whether the server is disabled; nothing else of
// such an entry is looked at.
func parseMCPServer(name string, raw json.RawMessage) (s mcpServer, off bool, err error) {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil || m == nil {
		return s, false, errors.New("not an object")
	}
	enabled := true
	if !field(m, "enabled", &enabled) {
		return s, false, errors.New("enabled is not a boolean")
	}
	if !enabled {
		return s, true, nil
	}
	s.name = name
	if err := s.decode(m); err != nil {
		return s, false, err
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		switch key {
		case "enabled", "type", "command", "args", "env", "url", "headers":
		default:
			s.unknown = append(s.unknown, key)
		}
	}
	return s, false, s.classify()
}

func (s *mcpServer) decode(m map[string]json.RawMessage) error {
	var args []*string
	var env, headers map[string]*string
	for _, f := range []struct {
		key  string
		dst  any
		want string
	}{
		{"type", &s.kind, "a string"},
		{"command", &s.command, "a string"},
		{"url", &s.url, "a string"},
		{"args", &args, "a list of strings"},
		{"env", &env, "an object of strings"},
		{"headers", &headers, "an object of strings"},
	} {
		if !field(m, f.key, f.dst) {
			return fmt.Errorf("%s is not %s", f.key, f.want)
		}
	}
	for _, a := range args {
		if a == nil {
			return errors.New("args is not a list of strings")
		}
		s.args = append(s.args, *a)
	}
	var ok bool
	if s.env, ok = sortedPairs(env); !ok {
		return errors.New("env is not an object of strings")
	}
	if s.headers, ok = sortedPairs(headers); !ok {
		return errors.New("headers is not an object of strings")
	}
	return nil
}

func sortedPairs(m map[string]*string) ([]mcpPair, bool) {
	var pairs []mcpPair
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if m[name] == nil {
			return nil, false
		}
		pairs = append(pairs, mcpPair{name, *m[name]})
	}
	return pairs, true
}

// classify settles the kind. SPEC 6: neither or both of command and url, or a
// type that contradicts them, is malformed.
func (s *mcpServer) classify() error {
	switch {
	case s.command == "" && s.url == "":
		return errors.New("neither command nor url is set")
	case s.command != "" && s.url != "":
		return errors.New("both command and url are set")
	case s.kind == "" && s.url != "":
		s.kind = "http"
	case s.kind == "":
		s.kind = "stdio"
	}
	if s.kind == "stdio" && s.command != "" || (s.kind == "http" || s.kind == "sse") && s.url != "" {
		return nil
	}
	return errors.New("its type is none of stdio with a command, http or sse with a url")
}

// The shapes of a server in session/new and the continuations.
type (
	mcpStdio struct {
		Name    string    `json:"name"`
		Command string    `json:"command"`
		Args    []string  `json:"args"`
		Env     []mcpPair `json:"env"`
	}
	mcpRemote struct {
		Type    string    `json:"type"`
		Name    string    `json:"name"`
		URL     string    `json:"url"`
		Headers []mcpPair `json:"headers"`
	}
)

// renderMCP gives the servers their wire shape, in order, and names those that
// the runtime's capabilities do not admit. wire is never nil: the protocol
// requires the array.
func renderMCP(servers []mcpServer, http, sse bool) (wire []any, withheld []string) {
	wire = []any{}
	for _, s := range servers {
		switch {
		case s.kind == "stdio":
			wire = append(wire, mcpStdio{s.name, s.command, orEmpty(s.args), orEmpty(s.env)})
		case s.kind == "http" && http, s.kind == "sse" && sse:
			wire = append(wire, mcpRemote{s.kind, s.name, s.url, orEmpty(s.headers)})
		default:
			withheld = append(withheld, s.name)
		}
	}
	return wire, withheld
}

// orEmpty keeps a required array from being rendered as null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// secretTexts returns the values of env and headers and of passed variables, as
// they are, as an error shows them, and as JSON spells them, with < and / as they
// are or escaped, the longest first, so that one that holds another goes whole.
func secretTexts(servers []mcpServer, values []string) (secrets []string) {
	for _, s := range servers {
		for _, p := range slices.Concat(s.env, s.headers) {
			values = append(values, p.Value)
		}
	}
	for _, v := range values { // and its lines, which a log has one by one
		values = slices.AppendSeq(values, strings.FieldsFuncSeq(v, func(r rune) bool { return r == '\n' || r == '\r' }))
	}
	for _, v := range values {
		spelt := strings.TrimSpace(string(encode(v)))
		escaped, _ := json.Marshal(v) // a string always can
		for _, s := range []string{v, strings.TrimSpace(cleanLine(v, len(v))), spelt[1 : len(spelt)-1], string(escaped[1 : len(escaped)-1])} {
			if len(s) >= minSecret {
				secrets = append(secrets, s, strings.ReplaceAll(s, "/", `\/`))
			}
		}
	}
	slices.SortFunc(secrets, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	return slices.Compact(secrets)
}

// MergeMCPConfig adds the servers of the operator's MCP configuration to the
// generated one, for a caller to use before [Adapter.Start]. A relative
// operatorPath is taken from workflowDir, the directory of WORKFLOW.md; an
// empty one is nothing to do. A server that both declare becomes the
// operator's, except that sortie-tools is refused; all else of both files
// stays, the generated one's winning.
//
// The generated file is replaced whole, readable by its owner alone, or left
// untouched; if its path is a symbolic link, the link is replaced. The
// operator's file is never written. An error is an [*Error] of kind
// [ErrResponseError] and holds no value of either file.
func MergeMCPConfig(operatorPath, workflowDir, generatedPath string) error {
	if operatorPath == "" {
		return nil
	}
	if !filepath.IsAbs(operatorPath) {
		operatorPath = filepath.Join(workflowDir, operatorPath)
	}
	operator, e := readMCP(operatorPath)
	if e != nil {
		return e
	}
	if _, taken := operator.servers[reservedMCP]; taken {
		return fail(ErrResponseError, fmt.Sprintf(
			"the MCP configuration %s declares a server named %s, which is reserved", operatorPath, reservedMCP), nil)
	}
	generated, e := readMCP(generatedPath)
	if e != nil {
		return e
	}
	maps.Copy(generated.servers, operator.servers)
	maps.Copy(operator.top, generated.top)
	operator.top[keyMCPServers] = encode(generated.servers)
	// The rename must not take the very file that operatorPath leads to.
	a, err := os.Stat(operatorPath)
	if err != nil {
		return fail(ErrResponseError, "the MCP configuration cannot be read", err)
	}
	if b, err := os.Lstat(generatedPath); err == nil && os.SameFile(a, b) {
		return fail(ErrResponseError, fmt.Sprintf(
			"the MCP configuration %s is the generated one itself", operatorPath), nil)
	}
	if err := replaceFile(generatedPath, encode(operator.top)); err != nil {
		return fail(ErrResponseError, "the merged MCP configuration cannot be written", err)
	}
	return nil
}

// replaceFile writes path by a rename, which follows no symbolic link at path
// and writes through no other name of the file there.
func replaceFile(path string, data []byte) error {
	// CreateTemp opens with O_EXCL and mode 0600.
	f, err := os.CreateTemp(filepath.Dir(path), ".mcp-*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
