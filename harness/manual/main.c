/* assay-manual man|bash|pages: the manual page, the completion for bash, or parts of docs/ for ci/tables, from the tables of commands,
 * options, functions and of what Hugging Face's names mean. */
#include <stdio.h>
#include <string.h>

#include "harness/commands/commands.h"
#include "harness/plan/weight_names.h"
#include "oracle/layer/batch_split_function.h"

/* Roff takes "-" for a hyphen, "\" for itself and a "." or "'" that begins a line for a request. */
static void print_roff(const char *text)
{
    bool begins = true;
    for (; *text != '\0'; text++) {
        if (begins && (*text == '.' || *text == '\'')) printf("\\&");
        if (*text == '-' || *text == '\\') putchar('\\');
        putchar(*text == '\\' ? 'e' : *text);
        begins = *text == '\n';
    }
}

static void print_option(const assay_option_row *row)
{
    const char letter = row->letter;
    printf(".TP\n");
    if (letter != '\0') printf("\\fB\\-%c\\fR, ", letter);
    printf("\\fB\\-\\-");
    print_roff(row->name);
    printf("\\fR");
    if (row->value != NULL) {
        printf(" \\fI");
        print_roff(row->value);
        printf("\\fR");
    }
    printf("\n");
    print_roff(row->help);
    printf("\n");
}

/* Of those that the command does not share with all others. */
static void print_options(unsigned allowed)
{
    for (const assay_option_row *row = NULL; (row = assay_options_next(allowed, row)) != NULL;) {
        if (allowed == 0 || (row->group & allowed) != 0) print_option(row);
    }
}

static void print_man(void)
{
    printf(".TH ASSAY 1 \"\" \"assay %s\" \"User Commands\"\n.SH NAME\n", ASSAY_VERSION);
    printf("assay \\- the reference that MoE and MLA kernels are tried against\n.SH SYNOPSIS\n");
    printf(".B assay\n.I COMMAND\n[options] ...\n.SH DESCRIPTION\n"
           "assay computes the layers of mixture\\-of\\-experts models in float64, forward and backward, stores inputs "
           "and\n"
           "results as golden fixtures, and gives a verdict on what a kernel made of the same inputs. CASE is a name "
           "of the\n"
           "catalogue (\\fBassay list\\fR), a glob over the names, or a path to a YAML file.\n.SH COMMANDS\n");
    for (int i = 0; i < assay_command_count; i++) {
        const assay_command *command = assay_commands[i];
        if (command->summary == NULL) continue;
        printf(".SS \"assay %s ", command->name);
        print_roff(command->arguments);
        printf("\"\n");
        print_roff(command->summary);
        printf(".\n");
        print_roff(command->details);
        print_options(command->options);
    }
    printf(".SH OPTIONS OF ALL COMMANDS\n");
    print_options(0);
    printf(".SH EXIT STATUS\n0: passed. 1: a comparison failed. 2: bad usage or input. 3: a verdict is vacuous.\n");
}

static void print_bash(void)
{
    printf("# completion of assay for bash; zsh takes it through bashcompinit\n_assay()\n{\n"
           "    local command=${COMP_WORDS[1]} word=${COMP_WORDS[COMP_CWORD]} options cases=\n"
           "    case $command in\n");
    for (int i = 0; i < assay_command_count; i++) {
        const assay_command *command = assay_commands[i];
        if (command->summary == NULL) continue;
        printf("    %s) options='", command->name);
        for (const assay_option_row *row = NULL; (row = assay_options_next(command->options, row)) != NULL;) {
            printf("--%s ", row->name);
        }
        printf("'%s ;;\n", strstr(command->arguments, "CASE") != NULL ? " cases=1" : "");
    }
    printf("    *) options='--help --version' ;;\n    esac\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
           "        COMPREPLY=($(compgen -W '");
    for (int i = 0; i < assay_command_count; i++) {
        if (assay_commands[i]->summary != NULL) printf("%s ", assay_commands[i]->name);
    }
    printf(
        "--help --version' -- \"$word\"))\n    elif [[ $word == -* ]]; then\n"
        "        COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n    elif [ -n \"$cases\" ]; then\n"
        "        COMPREPLY=($(compgen -W \"$(\"${COMP_WORDS[0]}\" list 2>/dev/null | cut -d ' ' -f 1)\" -- \"$word\") "
        "$(compgen -f -- \"$word\"))\n"
        "    else\n        COMPREPLY=($(compgen -f -- \"$word\"))\n    fi\n}\ncomplete -o filenames -F _assay assay\n");
}

/* --- parts of pages: "@ NAME", then its lines --- */

/* A "|" would end the cell. */
static void print_cell(const char *text)
{
    for (; *text != '\0'; text++) printf(*text == '|' ? "\\|" : "%c", *text);
}

/* Of options that commands share, the first row's help. */
static void print_options_page(void)
{
    printf("@ options\n| option | of | what it does |\n| --- | --- | --- |\n");
    for (const assay_option_row *row = NULL; (row = assay_options_next(~0u, row)) != NULL;) {
        const char letter = row->letter;
        int takers = 0, commands = 0;
        if (letter != '\0') printf("| `-%c`, `--%s", letter, row->name);
        if (letter == '\0') printf("| `--%s", row->name);
        if (row->value != NULL) printf(" ");
        if (row->value != NULL) print_cell(row->value);
        printf("` | ");
        for (int i = 0; i < assay_command_count; i++) {
            if (assay_commands[i]->summary == NULL) continue;
            commands++;
            for (const assay_option_row *r = NULL; (r = assay_options_next(assay_commands[i]->options, r)) != NULL;)
                takers += r == row;
        }
        bool first = true;
        for (int i = 0; i < assay_command_count && takers < commands; i++) {
            for (const assay_option_row *r = NULL; (r = assay_options_next(assay_commands[i]->options, r)) != NULL;) {
                if (r != row || assay_commands[i]->summary == NULL) continue;
                printf("%s%s", first ? "" : ", ", assay_commands[i]->name);
                first = false;
            }
        }
        printf("%s | ", takers < commands ? "" : "all");
        print_cell(row->help);
        printf(" |\n");
    }
}

static void print_weights_page(void)
{
    static const char *const layouts[] = {"[out, in]", "[in, out]", "[out]", "mxfp4, [out, in / 32, 16]"};
    static const char *const outputs[] = {"", ", first half", ", second half", ", even", ", odd"};
    printf("@ hugging-face-weights\n| tensor below the layer | ours | how it lies |\n| --- | --- | --- |\n");
    for (int i = 0; i < assay_weight_name_count; i++) {
        const assay_weight_name *row = &assay_weight_names[i];
        printf("| `%s` | `%s` | %s%s%s |\n", row->theirs, row->ours, layouts[row->layout], outputs[row->outputs],
               row->gpt_oss ? ", of gpt_oss" : "");
    }
}

/* Names alone: "function others ..."; ci/tables has the tensors from the cases of each. */
static void print_functions_page(void)
{
    printf("@ functions\n");
    const assay_batch_split_function *f = NULL;
    for (int i = 0; (f = assay_batch_split_function_at(i)) != NULL; i++) {
        printf("%s", assay_function_name(f));
        for (int k = 0; assay_batch_split_alias(k) != NULL; k++)
            if (assay_batch_split_function_of(assay_batch_split_alias(k)) == f)
                printf(" %s", assay_batch_split_alias(k));
        printf("\n");
    }
}

static void print_pages(void)
{
    print_options_page();
    print_weights_page();
    print_functions_page();
}

int main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";
    if (strcmp(what, "man") == 0) {
        print_man();
    } else if (strcmp(what, "bash") == 0) {
        print_bash();
    } else if (strcmp(what, "pages") == 0) {
        print_pages();
    } else {
        fprintf(stderr, "usage: assay-manual man|bash|pages\n");
        return 2;
    }
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
