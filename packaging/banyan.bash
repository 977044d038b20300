# SPDX-License-Identifier: BSD-3-Clause
# Completion of banyan's programs for bash: their options and commands, as --help says them; else names of files.
_banyan() {
    local word=$2 help
    help=$("$1" --help 2>/dev/null) || return
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(grep -oE -- '(^|[^[:alnum:]-])--?[a-z][a-z-]*' <<<"$help" | grep -oE -- '-.*' | sort -u)" \
            -- "$word")
    elif [[ $COMP_CWORD == 1 && ${1##*/} != banyan_run ]]; then # a word that begins a line, or one of banyan_perf's list
        mapfile -t COMPREPLY < <(compgen -W "$(sed -n -e 's/^ \{2,4\}\([a-z]\{4,\}\) \{2,\}.*/\1/p' \
            -e '/^COLLECTIVE: /,/;/{s/^COLLECTIVE: //;s/;.*//;p}' <<<"$help")" -- "$word")
    fi
}
complete -o default -o bashdefault -F _banyan banyan_codec banyan_doctor banyan_perf banyan_plot banyan_run banyan_sim banyan_status \
    banyan_topo banyan_trace
