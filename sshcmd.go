package acp

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// variableName is what a passed variable may be called (SPEC 11).
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// sshCommand returns the arguments behind ssh and what has to stand first on
// its standard input; a nil preamble is nothing. Of env, the launch's own
// environment, only what ssh.PassEnv names travels.
func sshCommand(ssh *SSH, workspace, command string, argv, env []string) (args []string, preamble []byte, e *Error) {
	if what := badHost(ssh.Host); what != "" {
		return nil, nil, fail(ErrAgentNotFound, fmt.Sprintf("ssh host %.200q %s", ssh.Host, what), nil)
	}
	mode := ssh.StrictHostKeyChecking
	switch mode {
	case "":
		mode = "accept-new"
	case "accept-new", "yes", "no":
	default:
		return nil, nil, fail(ErrAgentNotFound, fmt.Sprintf(
			"ssh host key checking %.200q is none of accept-new, yes and no", mode), nil)
	}
	names, values, e := passed(ssh.PassEnv, env)
	if e != nil {
		return nil, nil, e
	}
	if len(argv) > 0 {
		words := make([]string, len(argv))
		for i, word := range argv {
			words[i] = quote(word)
		}
		command = strings.Join(words, " ")
	}
	// SPEC 11: no part of a compound command runs when the cd failed.
	script := "cd -- " + quote(workspace) + " && { " + command + "\n}"
	if len(names) > 0 {
		script = receiver(names) + script
		preamble = encodePreamble(values)
	}
	if strings.IndexByte(script, 0) >= 0 {
		return nil, nil, fail(ErrAgentNotFound, "the workspace or the command holds a NUL byte", nil)
	}
	return []string{
		"-o", "StrictHostKeyChecking=" + mode,
		"-o", "BatchMode=yes",
		"-o", "ConnectTimeout=30",
		"-o", "ServerAliveInterval=15",
		"-o", "ServerAliveCountMax=3",
		"--", ssh.Host, script,
	}, preamble, nil
}

// badHost says what is wrong with a host, or "". Beyond SPEC 11 it refuses what
// newer releases of ssh refuse themselves, since a ProxyCommand of ssh's own
// configuration hands user and host to a shell.
func badHost(host string) string {
	if host == "" {
		return "is empty"
	}
	if strings.ContainsFunc(host, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return "holds white space or a control character"
	}
	user, name, found := cutLast(strings.TrimPrefix(host, "ssh://"), "@")
	if !found {
		user, name = "", user
	}
	switch {
	case strings.HasPrefix(host, "-") || strings.HasPrefix(user, "-") || strings.HasPrefix(name, "-"):
		return "has a part that starts with -"
	case name == "":
		return "names no host"
	case strings.ContainsAny(host, "'`\";&<>|(){}") || strings.ContainsAny(name, `$\`):
		return "holds a character that a shell would act on"
	}
	return ""
}

// cutLast is strings.Cut around the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// passed picks the listed variables that are set and not blank, in list order.
// Of a name that env sets twice the last counts, as it does for a process.
func passed(list, env []string) (names, values []string, e *Error) {
	for _, name := range list {
		if !variableName.MatchString(name) {
			return nil, nil, fail(ErrAgentNotFound, fmt.Sprintf("passed variable %.200q is not a variable's name", name), nil)
		}
		value := ""
		for _, entry := range env {
			if v, ok := strings.CutPrefix(entry, name+"="); ok {
				value = v
			}
		}
		if strings.IndexByte(value, 0) >= 0 {
			return nil, nil, fail(ErrAgentNotFound, "passed variable "+name+" holds a NUL byte", nil)
		}
		if strings.TrimSpace(value) != "" && !slices.Contains(names, name) {
			names, values = append(names, name), append(values, value)
		}
	}
	return names, values, nil
}

// quote makes s one word of a POSIX shell.
func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// preambleEnd is a preamble's last line: where a login script on the other side
// ate some of standard input, another line stands in its place.
const preambleEnd = "acp-variables-end"

// encodePreamble writes each value as the number of its lines, then the lines,
// as they are. That is what the shell's own read takes without a loss, and
// nothing of it is ever parsed as shell text.
func encodePreamble(values []string) []byte {
	var b []byte
	for _, v := range values {
		b = strconv.AppendInt(b, int64(strings.Count(v, "\n")+1), 10)
		b = append(b, '\n')
		b = append(b, v...)
		b = append(b, '\n')
	}
	return append(b, preambleEnd+"\n"...)
}

// receiver is the script that reads the preamble in the remote shell, with its
// builtins alone: a byte more than the preamble would be the protocol's, and a
// program's arguments would show the values. The values wait as positional
// parameters, since a variable like IFS or LC_ALL may be among them; the C
// locale keeps read from mistaking their bytes for parts of characters. Lines
// are joined in pieces, which keeps the time of many lines from growing as their
// square.
func receiver(names []string) string {
	var exports strings.Builder
	for i, name := range names {
		fmt.Fprintf(&exports, ` %s="${%d}"`, name, i+1)
	}
	return `acp_fail() { echo "acp: $1; nothing was started" >&2; exit 93; }
acp_line() { IFS= read -r acp_l || acp_fail 'the passed variables did not arrive whole'; }
acp_value() {
acp_line; acp_n=$acp_l
case $acp_n in '' | 0* | *[!0-9]* | ?????????*) acp_fail 'the passed variables arrived damaged';; esac
acp_line; acp_v=$acp_l; acp_c=
while [ "$acp_n" -gt 1 ]; do
acp_line; acp_n=$((acp_n - 1)); acp_c=$acp_c'
'$acp_l
[ ${#acp_c} -lt 1024 ] || { acp_v=$acp_v$acp_c; acp_c=; }
done
acp_v=$acp_v$acp_c
}
acp_set=${LC_ALL+x} acp_old=${LC_ALL-}
LC_ALL=C
set --
` + strings.Repeat(`acp_value; set -- "$@" "$acp_v"`+"\n", len(names)) + `acp_line; case $acp_l in ` + preambleEnd + `) ;; *) acp_fail 'the passed variables arrived damaged';; esac
if [ "$acp_set" ]; then LC_ALL=$acp_old; else unset LC_ALL; fi
unset acp_l acp_n acp_v acp_c acp_set acp_old
export` + exports.String() + ` || acp_fail 'a passed variable cannot be set here'
set --
unset -f acp_fail acp_line acp_value
`
}
